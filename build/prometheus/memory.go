package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sort"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/util/annotations"
)

// memory is a storage of series, keyed by their labels.
type memory struct {
	series map[string]*series
}

type series struct {
	labels  labels.Labels
	samples []chunks.Sample
}

func newMemory() *memory {
	return &memory{series: map[string]*series{}}
}

func (m *memory) add(of labels.Labels, milliseconds int64, value float64) {
	key := of.String()
	if m.series[key] == nil {
		m.series[key] = &series{labels: of}
	}
	m.series[key].samples = append(m.series[key].samples, sample{milliseconds, value})
}

// scrape adds the samples of a scrape, parsed according to its content type.
func (m *memory) scrape(from *scrape) error {
	milliseconds := int64(from.Time * 1000)
	reader, err := textparse.New([]byte(from.Body), from.ContentType, labels.NewSymbolTable(), textparse.ParserOptions{})
	if err != nil {
		return fmt.Errorf("%v: %w", from.Labels, err)
	}
	for {
		entry, err := reader.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("%v is no %s: %w", from.Labels, from.ContentType, err)
		}
		if entry != textparse.EntrySeries {
			continue
		}
		_, _, value := reader.Series()
		var of labels.Labels
		reader.Labels(&of)
		builder := labels.NewBuilder(of)
		for name, value := range from.Labels {
			if of.Has(name) {
				return fmt.Errorf("%v: the target's label %s is one of the metric %v too", from.Labels, name, of)
			}
			builder.Set(name, value)
		}
		m.add(builder.Labels(), milliseconds, value)
	}
	m.add(labels.NewBuilder(labels.FromMap(from.Labels)).Set("__name__", "up").Labels(), milliseconds, 1)
	return nil
}

// describe adds a series in the notation of rule tests.
func (m *memory) describe(parser parser.Parser, text string, interval int64) error {
	of, values, err := parser.ParseSeriesDesc(text)
	if err != nil {
		return fmt.Errorf("%s: %w", text, err)
	}
	for number, value := range values {
		if !value.Omitted {
			m.add(of, int64(number)*interval*1000, value.Value)
		}
	}
	return nil
}

// absent returns the selectors of an expression that no series matches, and those whose metric name and label names no
// series has, whatever the values. It returns none for an expression that does not parse.
func (m *memory) absent(promql parser.Parser, expr string) (missing, unknown []string) {
	missing, unknown = []string{}, []string{}
	tree, err := promql.ParseExpr(expr)
	if err != nil {
		return missing, unknown
	}
	parser.Inspect(tree, func(node parser.Node, _ []parser.Node) error {
		selector, ok := node.(*parser.VectorSelector)
		if !ok {
			return nil
		}
		if len(m.matching(selector.LabelMatchers)) == 0 {
			missing = append(missing, selector.String())
		}
		var named []*labels.Matcher
		for _, matcher := range selector.LabelMatchers {
			if matcher.Name != labels.MetricName {
				matcher = labels.MustNewMatcher(labels.MatchNotEqual, matcher.Name, "")
			}
			named = append(named, matcher)
		}
		if len(m.matching(named)) == 0 {
			unknown = append(unknown, selector.String())
		}
		return nil
	})
	return missing, unknown
}

func (m *memory) matching(matchers []*labels.Matcher) []*series {
	var found []*series
	for _, one := range m.series {
		matches := true
		for _, matcher := range matchers {
			matches = matches && matcher.Matches(one.labels.Get(matcher.Name))
		}
		if matches {
			found = append(found, one)
		}
	}
	sort.Slice(found, func(a, b int) bool { return labels.Compare(found[a].labels, found[b].labels) < 0 })
	return found
}

// Querier returns the samples of a time range to the engine.
func (m *memory) Querier(from, to int64) (storage.Querier, error) {
	return &querier{m, from, to}, nil
}

type querier struct {
	memory   *memory
	from, to int64
}

func (q *querier) Select(_ context.Context, _ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
	var selected []storage.Series
	for _, one := range q.memory.matching(matchers) {
		var samples []chunks.Sample
		for _, sample := range one.samples {
			if q.from <= sample.T() && sample.T() <= q.to {
				samples = append(samples, sample)
			}
		}
		selected = append(selected, storage.NewListSeries(one.labels, samples))
	}
	return &set{series: selected}
}

func (*querier) LabelValues(context.Context, string, *storage.LabelHints, ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return nil, nil, errors.New("the engine asks for no label's values")
}

func (*querier) LabelNames(context.Context, *storage.LabelHints, ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return nil, nil, errors.New("the engine asks for no labels' names")
}

func (*querier) Close() error { return nil }

// set iterates over selected series.
type set struct {
	series  []storage.Series
	current storage.Series
}

func (s *set) Next() bool {
	if len(s.series) == 0 {
		return false
	}
	s.current, s.series = s.series[0], s.series[1:]
	return true
}

func (s *set) At() storage.Series              { return s.current }
func (*set) Err() error                        { return nil }
func (*set) Warnings() annotations.Annotations { return nil }

type sample struct {
	milliseconds int64
	value        float64
}

func (sample) ST() int64                     { return 0 }
func (s sample) T() int64                    { return s.milliseconds }
func (s sample) F() float64                  { return s.value }
func (sample) H() *histogram.Histogram       { return nil }
func (sample) FH() *histogram.FloatHistogram { return nil }
func (sample) Type() chunkenc.ValueType      { return chunkenc.ValFloat }
func (s sample) Copy() chunks.Sample         { return s }
