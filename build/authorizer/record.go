package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Ports of Envoy, its providers and its backend.
const (
	host          = "127.0.0.1"
	adminPort     = 19000
	backendPort   = 19001
	grpcPort      = 19002
	otherPort     = 19003
	httpPort      = 19004
	tlsPort       = 19005
	firstListener = 19100
)

func place(port int) string {
	return fmt.Sprintf("%s:%d", host, port)
}

// cases is the file of providers, requests and the providers' responses.
type cases struct {
	Providers map[string]struct {
		Envoy json.RawMessage `json:"envoy"`
	} `json:"providers"`
	Cases []struct {
		Name     string          `json:"name"`
		Provider string          `json:"provider"`
		TLS      bool            `json:"tls"`
		Request  request         `json:"request"`
		Answer   json.RawMessage `json:"answer"`
	} `json:"cases"`
}

type recorded struct {
	Asked    []json.RawMessage `json:"asked"`
	Answered answered          `json:"answered"`
}

// record runs an Envoy with a listener for each provider of the file, sends it the file's requests, and prints the
// checks and responses.
func record(ctx context.Context, envoy, file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var all cases
	if err := json.Unmarshal(text, &all); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	recorder := &recorder{quiet: true}
	ready := make(chan struct{})
	ended := make(chan error, 2)
	go func() { ended <- serveBackend(ctx, place(backendPort)) }()
	go func() {
		addresses := [3]string{place(grpcPort), place(otherPort), place(httpPort)}
		ended <- serveProviders(ctx, recorder, addresses, func() { close(ready) })
	}()
	select {
	case <-ready:
	case err := <-ended:
		return err
	}
	directory, err := os.MkdirTemp("", "authorizer")
	if err != nil {
		return err
	}
	defer os.RemoveAll(directory)
	client, err := certify(directory)
	if err != nil {
		return err
	}
	listeners := map[string]int{}
	filters := map[string]json.RawMessage{}
	for name, provider := range all.Providers {
		listeners[name] = firstListener + len(listeners)
		filters[name] = provider.Envoy
	}
	config, err := json.Marshal(configuration(directory, listeners, filters))
	if err != nil {
		return err
	}
	path := filepath.Join(directory, "envoy.json")
	if err := os.WriteFile(path, config, 0o600); err != nil {
		return err
	}
	program := exec.CommandContext(ctx, envoy, "--concurrency", "1", "--disable-hot-restart", "--log-level", "error",
		"--config-path", path)
	program.Stderr = os.Stderr
	if err := program.Start(); err != nil {
		return err
	}
	defer func() { _ = program.Process.Kill(); _ = program.Wait() }()
	if err := untilReady(ctx); err != nil {
		return err
	}
	results := map[string]recorded{}
	for _, one := range all.Cases {
		sent, err := one.Request.with(one.Answer)
		if err != nil {
			return fmt.Errorf("%s: %w", one.Name, err)
		}
		port, found := listeners[one.Provider]
		if !found {
			return fmt.Errorf("%s: there is no provider %s", one.Name, one.Provider)
		}
		var config *tls.Config
		if one.TLS {
			port, config = tlsPort, client
		}
		// Envoy may close the connection without a response.
		answer, err := sent.send(ctx, place(port), config)
		if err != nil {
			answer = answered{Body: "none"}
		}
		results[one.Name] = recorded{Asked: recorder.take(), Answered: answer}
	}
	return write(results)
}

// write prints the results as JSON, one in each line.
func write(results map[string]recorded) error {
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(results)) {
		title, err := json.Marshal(name)
		if err != nil {
			return err
		}
		result, err := json.Marshal(results[name])
		if err != nil {
			return err
		}
		lines = append(lines, fmt.Sprintf(" %s: %s", title, result))
	}
	_, err := fmt.Printf("{\n%s\n}\n", strings.Join(lines, ",\n"))
	return err
}

// with adds the header that selects the provider's response: a word, or a response as JSON.
func (r request) with(answer json.RawMessage) (request, error) {
	if answer == nil {
		return r, nil
	}
	var word string
	if json.Unmarshal(answer, &word) != nil {
		var compact bytes.Buffer
		if err := json.Compact(&compact, answer); err != nil {
			return r, err
		}
		word = compact.String()
	}
	headers := append([][2]string{}, r.Headers...)
	r.Headers = append(headers, [2]string{answerHeader, word})
	return r, nil
}

func untilReady(ctx context.Context) error {
	ctx, stop := context.WithTimeout(ctx, time.Minute)
	defer stop()
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+place(adminPort)+"/ready", nil)
		if err != nil {
			return err
		}
		answer, err := http.DefaultClient.Do(request)
		if err == nil {
			_ = answer.Body.Close()
			if answer.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("Envoy does not become ready: %w", err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}
