// Package conformance runs the Gateway API's conformance tests for service meshes against a cluster with Ambit: the
// core features and every extended feature that a test requires.
package conformance

import (
	"flag"
	"os"
	"sort"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/gateway-api/conformance"
	meshtests "sigs.k8s.io/gateway-api/conformance/tests/mesh"
	"sigs.k8s.io/gateway-api/conformance/utils/suite"
	"sigs.k8s.io/gateway-api/pkg/features"
	"sigs.k8s.io/yaml"
)

var report = flag.String("report", "", "Where the report is written")

func TestMesh(t *testing.T) {
	options := conformance.DefaultOptions(t)
	options.ConformanceProfiles = []suite.ConformanceProfileName{
		suite.MeshHTTPConformanceProfileName,
		suite.MeshGRPCConformanceProfileName,
	}
	options.NamespaceLabels = map[string]string{"istio.io/dataplane-mode": "ambient"}
	options.SupportedFeatures = features.SetsToNamesSet(features.MeshExtendedFeatures).UnsortedList()
	for _, test := range meshtests.MeshConformanceTests {
		options.SupportedFeatures = append(options.SupportedFeatures, test.Features...)
	}
	require.NoError(t, options.Implementation.Validate())
	mesh, err := suite.NewConformanceTestSuite(options)
	require.NoError(t, err)
	// The report requires that the run has ended, so write it after the cleanup functions that the run registers: they
	// are called in reverse order.
	t.Cleanup(func() { write(t, mesh) })
	mesh.Setup(t, meshtests.MeshConformanceTests)
	require.NoError(t, mesh.Run(t, meshtests.MeshConformanceTests))
}

func write(t *testing.T, mesh *suite.ConformanceTestSuite) {
	results, err := mesh.Report()
	require.NoError(t, err)
	profiles := results.ProfileReports
	sort.Slice(profiles, func(i, j int) bool { return profiles[i].Name < profiles[j].Name })
	text, err := yaml.Marshal(results)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(*report, text, 0o644))
}
