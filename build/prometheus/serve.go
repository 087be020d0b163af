package main

import (
	"encoding/json"
	"fmt"
	"math"
	"net"
	"net/http"
	"sort"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
)

// server answers the part of Prometheus' HTTP API that Kiali asks, from scrapes that are posted to it.
type server struct {
	// mutex guards memory: queries read it, scrapes write.
	mutex  sync.RWMutex
	memory *memory
	engine *promql.Engine
}

// serve listens on an address, and prints the one that it got.
func serve(address string, engine *promql.Engine) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	fmt.Println(listener.Addr())
	s := &server{memory: newMemory(), engine: engine}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /scrape", s.scrape)
	mux.HandleFunc("/api/v1/query", s.execute(s.query))
	mux.HandleFunc("/api/v1/query_range", s.execute(s.queryRange))
	mux.HandleFunc("/api/v1/label/{name}/values", s.labelValues)
	mux.HandleFunc("/api/v1/status/config", func(w http.ResponseWriter, _ *http.Request) {
		respond(w, map[string]string{"yaml": "global:\n  scrape_interval: 1s\n"})
	})
	mux.HandleFunc("/api/v1/status/runtimeinfo", func(w http.ResponseWriter, _ *http.Request) {
		respond(w, map[string]any{"storageRetention": "1h", "startTime": time.Now(), "CWD": "/"})
	})
	return http.Serve(listener, mux)
}

func (s *server) scrape(w http.ResponseWriter, r *http.Request) {
	var from scrape
	if err := json.NewDecoder(r.Body).Decode(&from); err != nil {
		refuse(w, err)
		return
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if err := s.memory.scrape(&from); err != nil {
		refuse(w, err)
	}
}

// query makes an instant query of a request.
func (s *server) query(r *http.Request) (promql.Query, error) {
	at, err := parseTime(r.FormValue("time"))
	if err != nil {
		return nil, err
	}
	return s.engine.NewInstantQuery(r.Context(), s.memory, nil, r.FormValue("query"), at)
}

// queryRange makes a range query of a request.
func (s *server) queryRange(r *http.Request) (promql.Query, error) {
	start, err := parseTime(r.FormValue("start"))
	if err != nil {
		return nil, err
	}
	end, err := parseTime(r.FormValue("end"))
	if err != nil {
		return nil, err
	}
	step, err := parseStep(r.FormValue("step"))
	if err != nil {
		return nil, err
	}
	return s.engine.NewRangeQuery(r.Context(), s.memory, nil, r.FormValue("query"), start, end, step)
}

func (s *server) labelValues(w http.ResponseWriter, r *http.Request) {
	s.mutex.RLock()
	defer s.mutex.RUnlock()
	found := map[string]bool{}
	for _, one := range s.memory.series {
		if value := one.labels.Get(r.PathValue("name")); value != "" {
			found[value] = true
		}
	}
	values := []string{}
	for value := range found {
		values = append(values, value)
	}
	sort.Strings(values)
	respond(w, values)
}

// execute runs the queries that are made of requests, and writes their results.
func (s *server) execute(parse func(*http.Request) (promql.Query, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		query, err := parse(r)
		if err != nil {
			refuse(w, err)
			return
		}
		defer query.Close()
		s.mutex.RLock()
		defer s.mutex.RUnlock()
		answer := query.Exec(r.Context())
		if answer.Err != nil {
			refuse(w, answer.Err)
			return
		}
		result, err := render(answer.Value)
		if err != nil {
			refuse(w, err)
			return
		}
		respond(w, map[string]any{"resultType": answer.Value.Type(), "result": result})
	}
}

// render returns a value in the API's form.
func render(value parser.Value) (any, error) {
	switch value := value.(type) {
	case promql.Vector:
		samples := []any{}
		for _, one := range value {
			samples = append(samples, map[string]any{"metric": one.Metric.Map(), "value": pair(one.T, one.F)})
		}
		return samples, nil
	case promql.Matrix:
		series := []any{}
		for _, one := range value {
			values := []any{}
			for _, point := range one.Floats {
				values = append(values, pair(point.T, point.F))
			}
			series = append(series, map[string]any{"metric": one.Metric.Map(), "values": values})
		}
		return series, nil
	case promql.Scalar:
		return pair(value.T, value.V), nil
	default:
		return nil, fmt.Errorf("the query gives a %s", value.Type())
	}
}

func pair(milliseconds int64, value float64) []any {
	return []any{float64(milliseconds) / 1000, strconv.FormatFloat(value, 'f', -1, 64)}
}

func respond(w http.ResponseWriter, data any) {
	w.Header().Set("Content-Type", "application/json")
	// Fails only when the client is gone.
	_ = json.NewEncoder(w).Encode(map[string]any{"status": "success", "data": data})
}

func refuse(w http.ResponseWriter, err error) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusBadRequest)
	_ = json.NewEncoder(w).Encode(map[string]any{"status": "error", "errorType": "bad_data", "error": err.Error()})
}

// parseTime reads a time as the API takes it: seconds since 1970, or RFC 3339; now if there is none.
func parseTime(text string) (time.Time, error) {
	if text == "" {
		return time.Now(), nil
	}
	if seconds, err := strconv.ParseFloat(text, 64); err == nil {
		whole, part := math.Modf(seconds)
		return time.Unix(int64(whole), int64(part*1e9)), nil
	}
	return time.Parse(time.RFC3339Nano, text)
}

// parseStep reads a step of a range: seconds, or a duration in Prometheus' notation.
func parseStep(text string) (time.Duration, error) {
	if seconds, err := strconv.ParseFloat(text, 64); err == nil {
		return time.Duration(seconds * float64(time.Second)), nil
	}
	duration, err := model.ParseDuration(text)
	return time.Duration(duration), err
}
