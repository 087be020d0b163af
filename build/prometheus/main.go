// Command prometheus evaluates the queries of dashboards and alert rules with Prometheus' own engine, over scraped
// metrics of Ambit's programs.
//
// Standard input is one JSON document ([input]), standard output another ([output]). The engine reads samples from
// memory. With the arguments `serve ADDRESS` it is a server instead: scrapes are posted to it, and it answers the part
// of Prometheus' HTTP API that Kiali asks.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"log/slog"
	"os"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
)

type input struct {
	// Rule file, which is validated as Prometheus does when it loads one.
	Rules   string   `json:"rules"`
	Scrapes []scrape `json:"scrapes"`
	// Further series in the notation of Prometheus' rule tests: `name{label="value"} 0+1x60`.
	Series []string `json:"series"`
	// Seconds between the samples of Series; the first sample is at time 0.
	Interval int64 `json:"interval"`
	// Queries, and their evaluation time in Unix seconds.
	Queries []string `json:"queries"`
	Time    float64  `json:"time"`
}

// scrape is a target's response to a scrape.
type scrape struct {
	Time        float64 `json:"time"`
	ContentType string  `json:"contentType"`
	Body        string  `json:"body"`
	// Labels of the target, as service discovery would set them.
	Labels map[string]string `json:"labels"`
}

type output struct {
	Alerts  []alert  `json:"alerts"`
	Results []result `json:"results"`
}

// alert is an alert rule of the rule file.
type alert struct {
	Name        string            `json:"name"`
	Expr        string            `json:"expr"`
	For         float64           `json:"for"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

// result is the result of a query.
type result struct {
	Error   string  `json:"error,omitempty"`
	Samples []point `json:"samples"`
	// Selectors of the query that no series matches.
	Missing []string `json:"missing"`
	// Selectors whose metric name and label names no series has, whatever the values.
	Unknown []string `json:"unknown"`
}

type point struct {
	Labels map[string]string `json:"labels"`
	// Text, since JSON has no NaN.
	Value string `json:"value"`
}

func main() {
	log.SetFlags(0)
	if len(os.Args) == 3 && os.Args[1] == "serve" {
		log.Fatal(serve(os.Args[2], newEngine(parser.NewParser(parser.Options{}))))
	}
	var in input
	if err := json.NewDecoder(os.Stdin).Decode(&in); err != nil {
		log.Fatalf("cannot read the input: %v", err)
	}
	out, err := run(&in)
	if err != nil {
		log.Fatal(err)
	}
	if err := json.NewEncoder(os.Stdout).Encode(out); err != nil {
		log.Fatal(err)
	}
}

func run(in *input) (*output, error) {
	parser := parser.NewParser(parser.Options{})
	out := &output{Alerts: []alert{}, Results: []result{}}
	if in.Rules != "" {
		alerts, err := rules(in.Rules, parser)
		if err != nil {
			return nil, err
		}
		out.Alerts = alerts
	}
	memory := newMemory()
	for _, scrape := range in.Scrapes {
		if err := memory.scrape(&scrape); err != nil {
			return nil, err
		}
	}
	for _, series := range in.Series {
		if err := memory.describe(parser, series, in.Interval); err != nil {
			return nil, err
		}
	}
	engine := newEngine(parser)
	at := time.UnixMilli(int64(in.Time * 1000))
	for _, query := range in.Queries {
		out.Results = append(out.Results, evaluate(engine, parser, memory, query, at))
	}
	return out, nil
}

func newEngine(parser parser.Parser) *promql.Engine {
	return promql.NewEngine(promql.EngineOpts{
		MaxSamples:    10_000_000,
		Timeout:       time.Minute,
		LookbackDelta: 5 * time.Minute,
		Parser:        parser,
	})
}

// rules reads a rule file. Prometheus' validation also parses the expressions and the templates of annotations.
func rules(file string, parser parser.Parser) ([]alert, error) {
	groups, errs := rulefmt.ParseFile(file, false, model.UTF8Validation, parser, slog.New(slog.DiscardHandler))
	if len(errs) > 0 {
		return nil, fmt.Errorf("%s: %v", file, errs)
	}
	var alerts []alert
	for _, group := range groups.Groups {
		for _, rule := range group.Rules {
			alerts = append(alerts, alert{
				Name:        rule.Alert,
				Expr:        rule.Expr,
				For:         time.Duration(rule.For).Seconds(),
				Labels:      rule.Labels,
				Annotations: rule.Annotations,
			})
		}
	}
	return alerts, nil
}

func evaluate(engine *promql.Engine, parser parser.Parser, memory *memory, expr string, at time.Time) result {
	out := result{Samples: []point{}}
	out.Missing, out.Unknown = memory.absent(parser, expr)
	query, err := engine.NewInstantQuery(context.Background(), memory, nil, expr, at)
	if err != nil {
		out.Error = err.Error()
		return out
	}
	defer query.Close()
	answer := query.Exec(context.Background())
	if answer.Err != nil {
		out.Error = answer.Err.Error()
		return out
	}
	switch value := answer.Value.(type) {
	case promql.Vector:
		for _, sample := range value {
			out.Samples = append(out.Samples, point{sample.Metric.Map(), fmt.Sprint(sample.F)})
		}
	case promql.Scalar:
		out.Samples = append(out.Samples, point{map[string]string{}, fmt.Sprint(value.V)})
	default:
		out.Error = fmt.Sprintf("the query gives a %s, which no panel or rule can show", value.Type())
	}
	return out
}
