// Command plugin is a WasmPlugin for the system tests, compiled with the Go compiler and the published proxy-wasm SDK.
// Go's runtime requests time, random numbers and files from WASI before the plugin itself runs.
package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm"
	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm/types"
)

const upstream = "many.shop.svc.cluster.local:80"

func main() {}

func init() {
	proxywasm.SetVMContext(&vm{})
}

type vm struct{ types.DefaultVMContext }

func (*vm) NewPluginContext(uint32) types.PluginContext { return &plugin{} }

type plugin struct {
	types.DefaultPluginContext
	configuration string
	requests      proxywasm.MetricCounter
	ticks         int
}

func (p *plugin) OnPluginStart(int) types.OnPluginStartStatus {
	configuration, err := proxywasm.GetPluginConfiguration()
	if err != nil {
		return types.OnPluginStartStatusFailed
	}
	p.configuration = string(configuration)
	p.requests = proxywasm.DefineCounterMetric("go.requests")
	if err := proxywasm.SetTickPeriodMilliSeconds(20); err != nil {
		return types.OnPluginStartStatusFailed
	}
	// The host provides no file system.
	_, files := os.ReadFile("/etc/passwd")
	if files == nil || os.WriteFile("/tmp/written-by-a-plugin", nil, 0o600) == nil {
		return types.OnPluginStartStatusFailed
	}
	fmt.Println("a line that go writes")
	return types.OnPluginStartStatusOK
}

func (p *plugin) OnTick() { p.ticks++ }

func (p *plugin) NewHttpContext(uint32) types.HttpContext { return &request{plugin: p} }

type request struct {
	types.DefaultHttpContext
	plugin *plugin
	path   string
}

func note(name, value string) {
	if err := proxywasm.AddHttpRequestHeader(name, value); err != nil {
		proxywasm.LogErrorf("%s: %v", name, err)
	}
}

func (r *request) OnHttpRequestHeaders(int, bool) types.Action {
	r.plugin.requests.Increment(1)
	r.path, _ = proxywasm.GetHttpRequestHeader(":path")
	switch r.path {
	case "/headers":
		note("x-go", r.plugin.configuration)
		note("x-environment", os.Getenv("GREETING"))
		note("x-ticks", fmt.Sprint(r.plugin.ticks))
		began := time.Now()
		// Goroutines, the garbage collector and timers of Go's runtime work within one callback.
		said := make(chan string)
		go func() {
			time.Sleep(2 * time.Millisecond)
			said <- strings.Repeat("x", 3)
		}()
		note("x-slept", fmt.Sprint(<-said, time.Since(began) >= 2*time.Millisecond))
		namespace, _ := proxywasm.GetProperty([]string{"source", "namespace"})
		note("x-namespace", string(namespace))
	case "/body":
		if err := proxywasm.RemoveHttpRequestHeader("content-length"); err != nil {
			return types.ActionPause
		}
	case "/answer":
		headers := [][2]string{{"x-by", "go"}}
		if err := proxywasm.SendHttpResponse(418, headers, []byte("a teapot\n"), -1); err != nil {
			proxywasm.LogErrorf("no answer: %v", err)
		}
		return types.ActionPause
	case "/call":
		headers := [][2]string{{":method", "GET"}, {":path", "/asked"}, {":authority", "asked"}}
		_, err := proxywasm.DispatchHttpCall(upstream, headers, nil, nil, 5000, func(_, size, _ int) {
			body, _ := proxywasm.GetHttpCallResponseBody(0, size)
			note("x-called", fmt.Sprint(strings.HasPrefix(string(body), "GET /asked ")))
			if err := proxywasm.ResumeHttpRequest(); err != nil {
				proxywasm.LogErrorf("not resumed: %v", err)
			}
		})
		if err == nil {
			return types.ActionPause
		}
	case "/panic":
		panic("as it was asked to")
	}
	return types.ActionContinue
}

func (r *request) OnHttpRequestBody(size int, isEnd bool) types.Action {
	if r.path != "/body" {
		return types.ActionContinue
	}
	if !isEnd {
		return types.ActionPause
	}
	body, err := proxywasm.GetHttpRequestBody(0, size)
	if err == nil {
		err = proxywasm.ReplaceHttpRequestBody([]byte(strings.ToUpper(string(body)) + "!"))
	}
	if err != nil {
		proxywasm.LogErrorf("the body stays: %v", err)
	}
	return types.ActionContinue
}
