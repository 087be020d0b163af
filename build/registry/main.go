// Command registry is an in-memory image registry that requires credentials, for the system tests. It holds the given
// module as the image "plugin", with a tag for each format in which modules are packed.
//
//	oci-registry LISTEN basic|token USER PASSWORD MODULE
package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// token is the bearer token that the token endpoint issues for the password.
const token = "a-token-that-was-given"

func packed(module []byte) ([]byte, error) {
	var layer bytes.Buffer
	packer := gzip.NewWriter(&layer)
	archive := tar.NewWriter(packer)
	header := &tar.Header{Name: "plugin.wasm", Mode: 0o644, Size: int64(len(module))}
	if err := archive.WriteHeader(header); err != nil {
		return nil, err
	}
	if _, err := archive.Write(module); err != nil {
		return nil, err
	}
	if err := archive.Close(); err != nil {
		return nil, err
	}
	err := packer.Close()
	return layer.Bytes(), err
}

// push pushes the module to the registry through a server that requires no credentials.
func push(images http.Handler, module []byte) error {
	server := httptest.NewServer(images)
	defer server.Close()
	layer, err := packed(module)
	if err != nil {
		return err
	}
	for tag, layer := range map[string]v1.Layer{
		"artifact": static.NewLayer(module, "application/vnd.module.wasm.content.layer.v1+wasm"),
		"image":    static.NewLayer(layer, types.OCILayer),
		"docker":   static.NewLayer(layer, types.DockerLayer),
	} {
		image, err := mutate.Append(empty.Image, mutate.Addendum{Layer: layer})
		if err != nil {
			return err
		}
		reference, err := name.ParseReference(strings.TrimPrefix(server.URL, "http://") + "/test/plugin:" + tag)
		if err != nil {
			return err
		}
		if err := remote.Write(reference, image); err != nil {
			return err
		}
		digest, err := image.Digest()
		if err != nil {
			return err
		}
		fmt.Println(tag, digest)
	}
	return nil
}

func main() {
	if len(os.Args) != 6 {
		log.Fatal("oci-registry LISTEN basic|token USER PASSWORD MODULE")
	}
	address, scheme, user, password := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	module, err := os.ReadFile(os.Args[5])
	if err != nil {
		log.Fatal(err)
	}
	images := registry.New(registry.Logger(log.New(os.Stderr, "", 0)))
	if err := push(images, module); err != nil {
		log.Fatal(err)
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		log.Fatal(err)
	}
	known := func(request *http.Request) bool {
		name, secret, given := request.BasicAuth()
		return given && name == user && secret == password
	}
	log.Fatal(http.Serve(listener, http.HandlerFunc(func(answer http.ResponseWriter, request *http.Request) {
		switch {
		case request.URL.Path == "/token":
			query := request.URL.Query()
			if !known(request) || query.Get("scope") != "repository:test/plugin:pull" || query.Get("service") != "a registry" {
				answer.WriteHeader(http.StatusUnauthorized)
				return
			}
			fmt.Fprintf(answer, `{"token": %q, "expires_in": 60}`, token)
		case scheme == "basic" && known(request), scheme == "token" && request.Header.Get("Authorization") == "Bearer "+token:
			images.ServeHTTP(answer, request)
		case scheme == "basic":
			answer.Header().Set("WWW-Authenticate", `Basic realm="a registry"`)
			answer.WriteHeader(http.StatusUnauthorized)
		default:
			challenge := fmt.Sprintf(`Bearer realm="http://%s/token",service="a registry",scope="repository:test/plugin:pull"`, request.Host)
			answer.Header().Set("WWW-Authenticate", challenge)
			answer.WriteHeader(http.StatusUnauthorized)
		}
	})))
}
