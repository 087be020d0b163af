package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"time"
)

type object = map[string]any

func typed(name, of string, fields object) object {
	fields["@type"] = "type.googleapis.com/" + of
	return object{"name": name, "typed_config": fields}
}

func socket(port int) object {
	return object{"socket_address": object{"address": host, "port_value": port}}
}

func cluster(name string, port int, protocol object) object {
	options := "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
	protocol["@type"] = "type.googleapis.com/" + options
	endpoint := object{"endpoint": object{"address": socket(port)}}
	return object{
		"name": name,
		"type": "STATIC",
		"load_assignment": object{
			"cluster_name": name,
			"endpoints":    []object{{"lb_endpoints": []object{endpoint}}},
		},
		"typed_extension_protocol_options": object{options: protocol},
	}
}

// listener returns an Envoy listener with the ext_authz filter that forwards allowed requests to the backend.
func listener(port int, filter json.RawMessage, transport object) object {
	var asks object
	if err := json.Unmarshal(filter, &asks); err != nil {
		asks = object{}
	}
	asks["transport_api_version"] = "V3"
	to := object{"cluster": "backend"}
	perRoute := "envoy.extensions.filters.http.ext_authz.v3.ExtAuthzPerRoute"
	manager := object{
		"stat_prefix":    "requests",
		"normalize_path": true,
		"route_config": object{"virtual_hosts": []object{{
			"name":    "all",
			"domains": []string{"*"},
			"routes": []object{
				{
					"match": object{"prefix": "/context"},
					"route": to,
					"typed_per_filter_config": object{"asks": object{
						"@type":          "type.googleapis.com/" + perRoute,
						"check_settings": object{"context_extensions": object{"of": "the route"}},
					}},
				},
				{"match": object{"prefix": "/"}, "route": to},
			},
		}}},
		"http_filters": []object{
			typed("asks", "envoy.extensions.filters.http.ext_authz.v3.ExtAuthz", asks),
			typed("router", "envoy.extensions.filters.http.router.v3.Router", object{}),
		},
	}
	chain := object{"filters": []object{typed("http",
		"envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager", manager)}}
	if transport != nil {
		chain["transport_socket"] = transport
	}
	return object{"address": socket(port), "filter_chains": []object{chain}}
}

func configuration(directory string, ports map[string]int, filters map[string]json.RawMessage) object {
	explicit := func(version string) object {
		return object{"explicit_http_config": object{version: object{}}}
	}
	file := func(name string) object { return object{"filename": filepath.Join(directory, name)} }
	secured := typed("tls", "envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext", object{
		"require_client_certificate": true,
		"common_tls_context": object{
			"alpn_protocols":     []string{"h2", "http/1.1"},
			"tls_certificates":   []object{{"certificate_chain": file("server.pem"), "private_key": file("server.key")}},
			"validation_context": object{"trusted_ca": file("root.pem")},
		},
	})
	listeners := []object{listener(tlsPort, filters["grpc"], secured)}
	for name, port := range ports {
		listeners = append(listeners, listener(port, filters[name], nil))
	}
	return object{
		"admin": object{"address": socket(adminPort)},
		"static_resources": object{
			"listeners": listeners,
			"clusters": []object{
				cluster("grpc", grpcPort, explicit("http2_protocol_options")),
				cluster("http", httpPort, explicit("http_protocol_options")),
				cluster("backend", backendPort, explicit("http_protocol_options")),
			},
		},
	}
}

// certify writes Envoy's certificate and returns the TLS configuration of a client. Both have SPIFFE ids of the lab's
// service accounts.
func certify(directory string) (*tls.Config, error) {
	now := time.Now()
	issue := func(uri string, serial int64, parent *x509.Certificate, signer *ecdsa.PrivateKey) ([]byte, *ecdsa.PrivateKey, error) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return nil, nil, err
		}
		of := &x509.Certificate{
			SerialNumber: big.NewInt(serial),
			NotBefore:    now.Add(-time.Hour),
			NotAfter:     now.Add(time.Hour),
		}
		if parent == nil {
			of.IsCA, of.BasicConstraintsValid, of.KeyUsage = true, true, x509.KeyUsageCertSign
			parent, signer = of, key
		} else {
			identity, err := url.Parse(uri)
			if err != nil {
				return nil, nil, err
			}
			of.URIs = []*url.URL{identity}
			of.KeyUsage = x509.KeyUsageDigitalSignature
			of.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}
		}
		der, err := x509.CreateCertificate(rand.Reader, of, parent, &key.PublicKey, signer)
		return der, key, err
	}
	root, rootKey, err := issue("", 1, nil, nil)
	if err != nil {
		return nil, err
	}
	authority, err := x509.ParseCertificate(root)
	if err != nil {
		return nil, err
	}
	server, serverKey, err := issue("spiffe://cluster.local/ns/shop/sa/waypoint", 2, authority, rootKey)
	if err != nil {
		return nil, err
	}
	client, clientKey, err := issue("spiffe://cluster.local/ns/shop/sa/client", 3, authority, rootKey)
	if err != nil {
		return nil, err
	}
	key, err := x509.MarshalPKCS8PrivateKey(serverKey)
	if err != nil {
		return nil, err
	}
	for name, block := range map[string]*pem.Block{
		"root.pem":   {Type: "CERTIFICATE", Bytes: root},
		"server.pem": {Type: "CERTIFICATE", Bytes: server},
		"server.key": {Type: "PRIVATE KEY", Bytes: key},
	} {
		if err := os.WriteFile(filepath.Join(directory, name), pem.EncodeToMemory(block), 0o600); err != nil {
			return nil, err
		}
	}
	return &tls.Config{
		// The server is the Envoy that this program started.
		InsecureSkipVerify: true,
		Certificates:       []tls.Certificate{{Certificate: [][]byte{client}, PrivateKey: clientKey}},
	}, nil
}
