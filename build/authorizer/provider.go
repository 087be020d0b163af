package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"

	auth "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
)

// answerHeader is the request header that selects the provider's response: a CheckResponse as JSON (over HTTP a reply),
// or one of the words below. Requests without it are allowed.
const answerHeader = "x-answer"

const (
	// hang: the provider never responds.
	hang = "hang"
	// fail: the provider responds with an error.
	fail = "fail"
)

// recorder records the checks that providers received.
type recorder struct {
	lock  sync.Mutex
	asked []json.RawMessage
	// Whether checks are recorded without being printed.
	quiet bool
}

func (b *recorder) note(kind string, question any) {
	text, err := json.Marshal(map[string]any{kind: question})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	b.lock.Lock()
	defer b.lock.Unlock()
	b.asked = append(b.asked, text)
	if !b.quiet {
		fmt.Printf("%s\n", text)
	}
}

// take returns the checks since the previous call.
func (b *recorder) take() []json.RawMessage {
	b.lock.Lock()
	defer b.lock.Unlock()
	taken := b.asked
	b.asked = nil
	if taken == nil {
		taken = []json.RawMessage{}
	}
	return taken
}

func (b *recorder) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	text, err := json.Marshal(b.take())
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	_, _ = w.Write(text)
}

type provider struct {
	auth.UnimplementedAuthorizationServer
	recorder *recorder
	// Fixed response to every check; nil selects it by the request's header.
	always *auth.CheckResponse
}

func (p *provider) Check(ctx context.Context, question *auth.CheckRequest) (*auth.CheckResponse, error) {
	text, err := protojson.Marshal(question)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	p.recorder.note("grpc", json.RawMessage(text))
	if p.always != nil {
		return p.always, nil
	}
	answer := &auth.CheckResponse{}
	switch wanted := question.GetAttributes().GetRequest().GetHttp().GetHeaders()[answerHeader]; wanted {
	case "":
		wanted = `{"status": {}}`
		fallthrough
	default:
		if err := protojson.Unmarshal([]byte(wanted), answer); err != nil {
			return nil, status.Error(codes.InvalidArgument, err.Error())
		}
	case hang:
		<-ctx.Done()
		return nil, ctx.Err()
	case fail:
		return nil, status.Error(codes.Internal, "as it was told")
	}
	return answer, nil
}

// heard is an HTTP request as it was received.
type heard struct {
	Method  string              `json:"method"`
	Target  string              `json:"target"`
	Proto   string              `json:"proto"`
	Host    string              `json:"host"`
	Headers map[string][]string `json:"headers"`
	Body    string              `json:"body"`
}

func hear(request *http.Request) (heard, error) {
	body, err := io.ReadAll(request.Body)
	return heard{
		Method:  request.Method,
		Target:  request.RequestURI,
		Proto:   request.Proto,
		Host:    request.Host,
		Headers: lower(request.Header),
		Body:    string(body),
	}, err
}

func lower(headers http.Header) map[string][]string {
	all := map[string][]string{}
	for name, values := range headers {
		all[strings.ToLower(name)] = values
	}
	return all
}

// reply is an HTTP response.
type reply struct {
	Status  int         `json:"status"`
	Headers [][2]string `json:"headers"`
	Body    string      `json:"body"`
}

func (p *provider) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	question, err := hear(request)
	if err != nil {
		return
	}
	p.recorder.note("http", question)
	answer := reply{Status: http.StatusOK}
	switch wanted := request.Header.Get(answerHeader); wanted {
	case "":
	case hang:
		<-request.Context().Done()
		return
	case fail:
		answer.Status = http.StatusInternalServerError
	default:
		if err := json.Unmarshal([]byte(wanted), &answer); err != nil {
			answer = reply{Status: http.StatusInternalServerError, Body: err.Error()}
		}
	}
	for _, header := range answer.Headers {
		w.Header().Add(header[0], header[1])
	}
	w.WriteHeader(answer.Status)
	_, _ = io.Copy(w, bytes.NewBufferString(answer.Body))
}

// serveProviders serves the providers until the context ends; it calls `ready` when all of them listen.
func serveProviders(ctx context.Context, recorder *recorder, addresses [3]string, ready func()) error {
	deny := &auth.CheckResponse{}
	text := `{"status": {"code": 7}, "deniedResponse": {"status": {"code": "Unauthorized"}, "body": "by the other one"}}`
	if err := protojson.Unmarshal([]byte(text), deny); err != nil {
		return err
	}
	scripted := &provider{recorder: recorder}
	ended := make(chan error, len(addresses))
	for n, of := range []*provider{scripted, {recorder: recorder, always: deny}} {
		listener, err := net.Listen("tcp", addresses[n])
		if err != nil {
			return err
		}
		server := grpc.NewServer()
		auth.RegisterAuthorizationServer(server, of)
		go func() { ended <- server.Serve(listener) }()
		defer server.Stop()
	}
	listener, err := net.Listen("tcp", addresses[2])
	if err != nil {
		return err
	}
	server := &http.Server{Handler: scripted}
	go func() { ended <- server.Serve(listener) }()
	defer server.Close()
	ready()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		return nil
	}
}

func serve(ctx context.Context) error {
	recorder := &recorder{}
	listener, err := net.Listen("tcp", ":9002")
	if err != nil {
		return err
	}
	go func() { _ = http.Serve(listener, recorder) }()
	return serveProviders(ctx, recorder, [3]string{":9000", ":9001", ":8000"}, func() {
		fmt.Fprintln(os.Stderr, "serving")
	})
}
