//! Tests of nodes whose clocks are wrong: within the backdating of certificates, and beyond it.

use std::{collections::BTreeMap, fs, os::unix::fs::PermissionsExt, path::PathBuf};

use ambit_system_tests::{
    CLIENT_AND_SERVER, LogSource, Mesh, assert_only_tls, built_binary, options,
};

const NODES: [&str; 2] = ["node-1", "node-2"];

/// Simulated clocks of the node proxies, each set by a file. Only the wall clocks of the proxies are simulated, not
/// their monotonic clocks.
struct NodeClocks(tempfile::TempDir);

impl NodeClocks {
    /// Creates simulated clocks with these offsets, in the syntax of `faketime`.
    fn new(offsets: [&str; 2]) -> Self {
        let clocks = Self(tempfile::tempdir().unwrap());
        for (node, offset) in NODES.into_iter().zip(offsets) {
            clocks.set(node, offset);
            // The dynamic linker expands `$LIB`.
            let script = format!(
                "#!/bin/sh\n\
                 export FAKETIME_TIMESTAMP_FILE={} FAKETIME_NO_CACHE=1 FAKETIME_DONT_FAKE_MONOTONIC=1\n\
                 exec env LD_PRELOAD='/usr/$LIB/faketime/libfaketimeMT.so.1' {} \"$@\"\n",
                clocks.file(node).display(),
                built_binary("ambit-node-proxy").display()
            );
            fs::write(clocks.proxy_wrapper(node), script).unwrap();
            fs::set_permissions(
                clocks.proxy_wrapper(node),
                fs::Permissions::from_mode(0o755),
            )
            .unwrap();
        }
        clocks
    }

    fn set(&self, node: &str, offset: &str) {
        // Renamed into place, so that the file exists at every moment.
        let scratch = self.0.path().join("new");
        fs::write(&scratch, offset).unwrap();
        fs::rename(scratch, self.file(node)).unwrap();
    }

    fn file(&self, node: &str) -> PathBuf {
        self.0.path().join(format!("{node}.clock"))
    }

    fn proxy_wrapper(&self, node: &str) -> PathBuf {
        self.0.path().join(node)
    }

    fn mesh(&self) -> Mesh {
        let mut options = options();
        options.node_proxies =
            BTreeMap::from(NODES.map(|node| (node.to_owned(), self.proxy_wrapper(node))));
        Mesh::up_with(CLIENT_AND_SERVER, options)
    }
}

#[test]
fn nodes_with_clocks_three_minutes_apart_trust_each_other() {
    let clocks = NodeClocks::new(["+90s", "-90s"]);
    let mesh = clocks.mesh();
    let wire = mesh.capture_between_nodes(&["plain-marker"]);
    mesh.wait_for_get("shop/client", "http://server/", true);
    let captured = ["shop/client", "shop/server"].map(|pod| mesh.ip(pod));
    assert_only_tls(&wire.finish(), &captured);
}

#[test]
fn node_with_a_clock_days_behind_serves_once_corrected() {
    test_clock_correction("-2d", "certificate not valid yet");
}

#[test]
fn node_with_a_clock_days_ahead_serves_once_it_is_corrected() {
    test_clock_correction("+2d", "certificate expired");
}

fn test_clock_correction(offset: &str, complaint: &str) {
    let clocks = NodeClocks::new(["+0s", offset]);
    let mesh = clocks.mesh();
    mesh.get("shop/client", "http://server/")
        .assert_terminated();
    let log = LogSource::Daemon {
        name: "proxy".into(),
        node: Some("node-2".into()),
    };
    let text = mesh.client().log_text(log).unwrap();
    assert!(text.contains(complaint), "{text}");
    clocks.set("node-2", "+0s");
    mesh.wait_for_get("shop/client", "http://server/", true);
}
