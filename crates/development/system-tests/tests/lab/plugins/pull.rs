//! Tests of Wasm modules that a waypoint pulls: from a registry that requires credentials (`build/registry`), and from
//! servers that lie, hang, flood, or redirect elsewhere.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    sync::{Arc, Mutex},
};

use ambit_system_tests::{Options, built_binary, options, read_head, wait_until};

use crate::plugins::{handwritten::HEADERS, scene::PluginFixture};

const USER: &str = "puller";
const PASSWORD: &str = "a-password-nobody-else-knows";

/// Writes a module; returns its directory, and the options of a lab whose waypoints may pull without TLS and cache
/// modules in that directory.
fn module() -> (tempfile::TempDir, Options) {
    let directory = tempfile::tempdir().unwrap();
    let module = directory.path().join("tag.wasm");
    std::fs::write(module, wat::parse_str(HEADERS).unwrap()).unwrap();
    let mut options = options();
    let cache = directory.path().join("kept");
    for (name, value) in [
        ("AMBIT_WASM_CACHE", cache.to_str().unwrap()),
        ("AMBIT_WASM_FETCH_TIMEOUT", "5s"),
        ("AMBIT_IMAGE_PULL_SECRETS", "true"),
        ("WASM_INSECURE_REGISTRIES", "*"),
    ] {
        options.env.insert(name.to_owned(), value.to_owned());
    }
    (directory, options)
}

/// Services in the namespace `legacy` of the pods from which modules are pulled, and a grant for WasmPlugins of `shop`.
const GRANT: &str = "
---
apiVersion: v1
kind: Service
metadata: {name: registries, namespace: legacy}
spec: {selector: {app: registry}, ports: [{port: 5000}]}
---
apiVersion: v1
kind: Service
metadata: {name: hostile, namespace: legacy}
spec: {selector: {app: client}, ports: [{port: 5000}]}
---
apiVersion: gateway.networking.k8s.io/v1beta1
kind: ReferenceGrant
metadata: {name: modules, namespace: legacy}
spec:
  from: [{group: extensions.istio.io, kind: WasmPlugin, namespace: shop}]
  to: [{group: '', kind: Service}]
";

fn registry(scheme: &str, module: &std::path::Path) -> String {
    format!(
        "
---
apiVersion: v1
kind: Pod
metadata: {{name: {scheme}, namespace: legacy, labels: {{app: registry}}}}
spec:
  nodeName: node-1
  containers:
  - {{name: main, image: none, command: [{}, '0.0.0.0:5000', {scheme}, {USER}, {PASSWORD}, {}]}}
",
        built_binary("oci-registry").display(),
        module.join("tag.wasm").display()
    )
}

impl PluginFixture {
    fn wait_until_dumped(&self, what: &str, why: &str) {
        wait_until(what, || self.dump().contains(why));
    }

    /// Applies the Secret `registry` with a password for some registries.
    fn apply_registry_secret(&self, label: &str, password: &str, registries: &[&str]) {
        let entries: Vec<String> = registries
            .iter()
            .map(|one| {
                format!("\"{one}\": {{\"username\": \"{USER}\", \"password\": \"{password}\"}}")
            })
            .collect();
        let manifest = format!(
            "
apiVersion: v1
kind: Secret
metadata: {{name: registry, namespace: shop, labels: {{{label}}}}}
type: kubernetes.io/dockerconfigjson
stringData:
  .dockerconfigjson: '{{\"auths\": {{{}}}}}'
",
            entries.join(", ")
        );
        self.mesh.apply("secret", &manifest);
    }
}

#[test]
fn module_is_pulled_only_with_its_secrets_credentials() {
    let (directory, options) = module();
    let registries = ["basic", "token"].map(|scheme| registry(scheme, directory.path()));
    let scene = PluginFixture::with(&(registries.concat() + GRANT), options);
    let [basic, token] = ["basic", "token"]
        .map(|scheme| format!("{}:5000", scene.mesh.ip(&format!("legacy/{scheme}"))));
    let pull = |registry: &str, tag: &str, team: &str| {
        let more = format!(
            "imagePullPolicy: Always\n  imagePullSecret: registry\n  pluginConfig: {{team: {team}}}"
        );
        scene.apply_plugin_from(
            "pulled",
            &format!("oci://{registry}/test/plugin:{tag}"),
            &more,
        );
    };
    let runs = |team: &str| {
        let expected = format!("{{\"team\":\"{team}\"}}");
        scene.wait_for_responses("the plugin runs", "", |answer| answer.contains(&expected));
    };
    let labelled = "ambit.io/image-pull: 'true'";
    let both = [basic.as_str(), token.as_str()];

    // Without a Secret, and with a wrong password, the pull fails, and requests are rejected.
    pull(&basic, "artifact", "one");
    let has_none = "spec.imagePullSecret has none for it";
    scene.wait_until_dumped("no credentials", has_none);
    scene.wait_for_responses("requests are refused", "", |answer| {
        answer.contains(" 503 ")
    });
    scene.apply_registry_secret(labelled, "wrong", &both);
    scene.wait_until_dumped("refused", "responds with 401");
    scene.wait_for_responses("requests are refused", "", |answer| {
        answer.contains(" 503 ")
    });

    // The correct password, by both authentication schemes of registries, and for each image
    // format.
    scene.apply_registry_secret(labelled, PASSWORD, &both);
    runs("one");
    pull(&token, "artifact", "two");
    runs("two");
    pull(&token, "image", "three");
    runs("three");
    pull(&basic, "docker", "four");
    runs("four");

    // A running plugin continues without the Secret, and when the Secret is no longer for it.
    scene.apply_registry_secret("app: other", PASSWORD, &both);
    scene.wait_until_dumped("the Secret is another's", has_none);
    runs("four");
    scene.apply_registry_secret(labelled, PASSWORD, &both);
    pull(&basic, "docker", "five");
    runs("five");
    scene.mesh.remove("secret");
    scene.wait_until_dumped("the Secret has gone", has_none);
    runs("five");

    // No other party has received the password.
    let logs = scene.mesh.logs() + &scene.waypoint_log() + &scene.dump();
    for secret in [
        PASSWORD,
        "cHVsbGVyOmEtcGFzc3dvcmQ",
        "a-token-that-was-given",
    ] {
        assert!(!logs.contains(secret), "{secret}");
    }
    for entry in std::fs::read_dir(directory.path().join("kept")).unwrap() {
        let kept = std::fs::read(entry.unwrap().path()).unwrap();
        assert!(kept.starts_with(b"\0asm"), "only modules are on disk");
    }
}

/// Heads of the requests that a server has received.
type RecordedHeads = Arc<Mutex<Vec<String>>>;

/// Sends an invalid response, of the kind that the first segment of the path selects.
fn send_invalid_response(
    stream: &mut TcpStream,
    head: &str,
    other: SocketAddr,
) -> std::io::Result<()> {
    const MANIFEST: &str = r#"{"layers": [{"mediaType": "application/wasm", "digest": "sha256:0000000000000000000000000000000000000000000000000000000000000000"}]}"#;
    let path = head.split(' ').nth(1).unwrap_or_default();
    let answer = |status: &str, headers: &str, body: &str| {
        let length = body.len();
        format!("HTTP/1.1 {status}\r\n{headers}content-length: {length}\r\n\r\n{body}")
    };
    let text = if path.starts_with("/v2/lies/manifests/") {
        answer("200 OK", "", MANIFEST)
    } else if path.starts_with("/v2/lies/") {
        answer("200 OK", "", "another layer")
    } else if path.starts_with("/v2/hangs/") {
        // Until the client has disconnected.
        return stream.read(&mut [0]).map(drop);
    } else if path.starts_with("/v2/floods/") {
        write!(
            stream,
            "HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n"
        )?;
        let piece = [b' '; 64 << 10];
        loop {
            stream.write_all(&piece)?;
        }
    } else if path.starts_with("/v2/leads/") {
        answer(
            "307 Elsewhere",
            &format!("location: http://{other}{path}\r\n"),
            "",
        )
    } else if path.starts_with("/v2/tells/") {
        let realm = format!("www-authenticate: Bearer realm=\"http://{other}/token\"\r\n");
        answer("401 Who", &realm, "")
    } else if path.starts_with("/v2/nonsense/") {
        answer("200 OK", "", "[\"no manifest\"")
    } else {
        answer("200 OK", "", "no module")
    };
    stream.write_all(text.as_bytes())
}

#[test]
fn hostile_registries_get_no_secret_and_do_no_harm() {
    let (_directory, options) = module();
    let scene = PluginFixture::with(GRANT, options);
    // A server that requests credentials, for a registry that it is not.
    let stolen = RecordedHeads::default();
    let recorded = stolen.clone();
    let other = scene.mesh.serve_connections("legacy/client", 5001, move |mut stream| {
        while let Some(head) = read_head(&mut stream)? {
            recorded.lock().unwrap().push(head.to_ascii_lowercase());
            stream.write_all(
                b"HTTP/1.1 401 Who\r\nwww-authenticate: Basic realm=\"x\"\r\ncontent-length: 0\r\n\r\n",
            )?;
        }
        Ok(())
    });
    let server = scene
        .mesh
        .serve_connections("legacy/client", 5000, move |mut stream| {
            while let Some(head) = read_head(&mut stream)? {
                send_invalid_response(&mut stream, &head, other)?;
            }
            Ok(())
        });
    scene.apply_registry_secret(
        "ambit.io/image-pull: 'true'",
        PASSWORD,
        &[&server.to_string()],
    );
    let digest = "0".repeat(64);
    for (name, url, why) in [
        ("lies", "oci://SERVER/lies:1", "does not match its digest"),
        (
            "hangs",
            "oci://SERVER/hangs:1",
            "it took more than 5s (AMBIT_WASM_FETCH_TIMEOUT)",
        ),
        (
            "floods",
            "oci://SERVER/floods:1",
            "is longer than 4194304 bytes",
        ),
        ("leads", "oci://SERVER/leads:1", "responds with 401"),
        ("tells", "oci://SERVER/tells:1", "in plaintext"),
        (
            "nonsense",
            "oci://SERVER/nonsense:1",
            "the manifest cannot be read",
        ),
        ("other", "http://SERVER/other", "as in spec.sha256"),
        ("none", "http://SERVER/none", "no WebAssembly module"),
    ] {
        let sha256 = if name == "other" { digest.as_str() } else { "" };
        let more =
            format!("failStrategy: FAIL_OPEN\n  imagePullSecret: registry\n  sha256: '{sha256}'");
        scene.apply_plugin_from(name, &url.replace("SERVER", &server.to_string()), &more);
        wait_until(name, || {
            let known = scene.dumped_plugin_state(name);
            known["error"]
                .as_str()
                .is_some_and(|error| error.contains(why))
        });
    }
    let passed = scene.get("");
    assert!(passed.contains(" 200 "), "{passed}");
    // The waypoint keeps retrying the plugins; then requests are decided by the other failure
    // policy.
    scene.apply_plugin_from(
        "none",
        &format!("http://{server}/none"),
        "failStrategy: FAIL_CLOSE",
    );
    scene.wait_for_responses("requests are refused", "", |answer| {
        answer.contains(" 503 ")
    });
    let stolen = stolen.lock().unwrap();
    assert!(
        stolen.iter().any(|head| head.contains("/v2/leads/")),
        "{stolen:?}"
    );
    assert!(
        !stolen.iter().any(|head| head.contains("authorization")),
        "{stolen:?}"
    );
}
