package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
)

func protocols() *http.Protocols {
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	return &protocols
}

func echo(w http.ResponseWriter, request *http.Request) {
	heard, err := hear(request)
	if err != nil {
		return
	}
	text, err := json.Marshal(heard)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("content-type", "application/json")
	w.Header().Set("x-there", "application")
	_, _ = w.Write(text)
}

// serveBackend serves an application that responds to each request with the request as JSON.
func serveBackend(ctx context.Context, address string) error {
	server := &http.Server{Addr: address, Handler: http.HandlerFunc(echo), Protocols: protocols()}
	ended := make(chan error, 1)
	go func() { ended <- server.ListenAndServe() }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		return server.Close()
	}
}

// request is an HTTP request to send.
type request struct {
	// Either HTTP/1.1 or HTTP/2.
	Version string      `json:"version"`
	Method  string      `json:"method"`
	Target  string      `json:"target"`
	Host    string      `json:"host"`
	Headers [][2]string `json:"headers"`
	Body    *string     `json:"body"`
	// Whether the body is sent without a content-length.
	Chunked bool `json:"chunked"`
}

// answered is the response to a request.
type answered struct {
	Status  int                 `json:"status"`
	Headers map[string][]string `json:"headers"`
	// Body of a response that is not the application's JSON.
	Body string `json:"body,omitempty"`
	// Request that the application received, if the response is its own.
	Heard *heard `json:"heard,omitempty"`
}

// send sends the request to an address, over TLS if there is a configuration.
func (r request) send(ctx context.Context, address string, config *tls.Config) (answered, error) {
	transport := &http.Transport{DisableCompression: true, TLSClientConfig: config, DisableKeepAlives: true}
	transport.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		var dialer net.Dialer
		return dialer.DialContext(ctx, network, address)
	}
	var versions http.Protocols
	switch {
	case r.Version != "HTTP/2":
		versions.SetHTTP1(true)
	case config != nil:
		versions.SetHTTP2(true)
	default:
		versions.SetUnencryptedHTTP2(true)
	}
	transport.Protocols = &versions
	scheme := "http"
	if config != nil {
		scheme = "https"
	}
	target, err := url.Parse(scheme + "://" + r.Host + r.Target)
	if err != nil {
		return answered{}, err
	}
	// A nil User-Agent keeps Go from adding its own.
	sent := (&http.Request{
		Method: r.Method,
		URL:    target,
		Host:   r.Host,
		Header: http.Header{"User-Agent": nil},
	}).WithContext(ctx)
	for _, header := range r.Headers {
		sent.Header.Add(header[0], header[1])
	}
	if r.Body != nil {
		sent.Body = io.NopCloser(bytes.NewBufferString(*r.Body))
		sent.ContentLength = int64(len(*r.Body))
		if r.Chunked {
			sent.ContentLength = -1
		}
	}
	got, err := transport.RoundTrip(sent)
	if err != nil {
		return answered{}, err
	}
	defer got.Body.Close()
	body, err := io.ReadAll(got.Body)
	if err != nil {
		return answered{}, err
	}
	answer := answered{Status: got.StatusCode, Headers: lower(got.Header)}
	var heard heard
	if json.Unmarshal(body, &heard) == nil {
		answer.Heard = &heard
	} else {
		answer.Body = string(body)
	}
	return answer, nil
}

func ask(ctx context.Context, address, text string) error {
	var wanted request
	if err := json.Unmarshal([]byte(text), &wanted); err != nil {
		return err
	}
	answer, err := wanted.send(ctx, address, nil)
	if err != nil {
		return err
	}
	said, err := json.Marshal(answer)
	if err != nil {
		return err
	}
	_, err = fmt.Println(string(said))
	return err
}
