//! Tests of pushing images to a registry of CNCF's distribution project, with TLS and passwords.

use std::{fs, net::SocketAddr, path::Path};

use ambit_images::{Architecture, Image, ImageNaming, LayerTree, Variant};
use ambit_lab::ExecOutput;
use ambit_system_tests::{CLIENT_AND_SERVER, Mesh, built_binary};
use ambit_testkit::helm_command;
use base64::Engine as _;
use rcgen::{CertificateParams, KeyPair};

const USER: &str = "pusher";
const PASSWORD: &str = "a-password-nobody-else-knows";
/// Bcrypt hash of [`PASSWORD`].
const PASSWORD_HASH: &str = "$2a$04$OZwqjWbgZkt1//p10WVRHe8b/rP/vSkb1nL8hIQ7QaIxaD8wq02RG";
/// Host and port of the registry: the Service of its pod.
const REGISTRY_HOST: &str = "registry.legacy.svc.cluster.local:5000";

/// Mesh with the registry, and the directories of the registry and of the pushing client.
struct RegistryFixture {
    mesh: Mesh,
    directory: tempfile::TempDir,
}

impl RegistryFixture {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let (host, _) = REGISTRY_HOST.split_once(':').unwrap();
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new([host.to_owned()]).unwrap();
        let certificate = certificate.self_signed(&key).unwrap();
        fs::write(path("key.pem"), key.serialize_pem()).unwrap();
        fs::write(path("cert.pem"), certificate.pem()).unwrap();
        fs::write(path("htpasswd"), format!("{USER}:{PASSWORD_HASH}\n")).unwrap();
        let at = directory.path().display();
        let config = format!(
            "version: 0.1
storage: {{filesystem: {{rootdirectory: {at}/storage}}}}
http: {{addr: ':5000', tls: {{certificate: {at}/cert.pem, key: {at}/key.pem}}}}
auth: {{htpasswd: {{realm: test, path: {at}/htpasswd}}}}
"
        );
        fs::write(path("config.yml"), config).unwrap();
        let registry = format!(
            "{CLIENT_AND_SERVER}
---
apiVersion: v1
kind: Service
metadata: {{name: registry, namespace: legacy}}
spec: {{selector: {{app: registry}}, ports: [{{port: 5000}}]}}
---
apiVersion: v1
kind: Pod
metadata: {{name: registry, namespace: legacy, labels: {{app: registry}}}}
spec:
  nodeName: node-1
  containers:
  - {{name: main, image: none, command: [{}, serve, {at}/config.yml]}}
",
            built_binary("oci-distribution").display()
        );
        let mesh = Mesh::up(&registry);
        let scene = Self { mesh, directory };
        let address = SocketAddr::new(scene.mesh.ip("legacy/registry"), 5000);
        ambit_system_tests::wait_until("the registry listens", || {
            scene.mesh.dial("legacy/client", address).is_ok()
        });
        scene
    }

    /// Writes an image archive of that name for this machine; returns its path and the digest of its manifest.
    fn archive(&self, name: &str) -> (std::path::PathBuf, String) {
        self.archive_for(name, &[Architecture::native().unwrap()])
    }

    /// Writes an image archive of that name for several architectures; returns its path and the digest of its index.
    fn archive_for(
        &self,
        name: &str,
        architectures: &[Architecture],
    ) -> (std::path::PathBuf, String) {
        let variant = |architecture: &Architecture| {
            let mut tree = LayerTree::default();
            tree.add_text_file("/etc/motd", name);
            tree.add_text_file("/etc/architecture", architecture.name());
            Variant {
                architecture: *architecture,
                layers: vec![tree.to_layer().unwrap()],
            }
        };
        let image = Image {
            name: &format!("{REGISTRY_HOST}/{name}"),
            variants: architectures.iter().map(variant).collect(),
            entrypoint: &["/bin/sh"],
            user: "",
        };
        let path = self.path(&format!("{}.tar", name.replace('/', "-")));
        image.write(&path).unwrap();
        let mut archive = tar::Archive::new(fs::File::open(&path).unwrap());
        let index = archive.entries().unwrap().map(Result::unwrap);
        let index = index
            .into_iter()
            .find(|entry| entry.path().unwrap() == Path::new("index.json"));
        let index: serde_json::Value = serde_json::from_reader(index.unwrap()).unwrap();
        let digest = index.pointer("/manifests/0/digest").unwrap();
        let digest = digest.as_str().unwrap().to_owned();
        (path, digest)
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }

    /// Stores registry credentials as `docker login` does; none for an empty password.
    fn login(&self, password: &str) {
        let auth = base64::engine::general_purpose::STANDARD.encode(format!("{USER}:{password}"));
        let auths = match password {
            "" => serde_json::json!({}),
            _ => serde_json::json!({REGISTRY_HOST: {"auth": auth}}),
        };
        let config = serde_json::json!({"auths": auths}).to_string();
        fs::write(self.path("config.json"), config).unwrap();
    }

    fn push(&self, archives: &[&Path], trusts: bool) -> ExecOutput {
        let certificate = format!("SSL_CERT_FILE={}", self.path("cert.pem").display());
        let docker = format!("DOCKER_CONFIG={}", self.directory.path().display());
        let program = built_binary("ambit-image-push").display().to_string();
        let mut command = vec!["/usr/bin/env", docker.as_str()];
        if trusts {
            command.push(&certificate);
        }
        command.push(&program);
        command.extend(archives.iter().map(|path| path.to_str().unwrap()));
        self.mesh
            .client()
            .output("legacy/client", &command)
            .unwrap()
    }

    /// Returns the manifest or index of a tag in the registry's storage.
    fn tagged_manifest(&self, repository: &str, tag: &str) -> Option<String> {
        let link = format!(
            "storage/docker/registry/v2/repositories/{repository}/_manifests/tags/{tag}/current/link"
        );
        fs::read_to_string(self.path(&link)).ok()
    }
}

#[test]
fn images_are_pushed_with_dockers_credentials() {
    let scene = RegistryFixture::new();
    let (agent, agent_digest) = scene.archive("me/agent:v1");
    let (control, control_digest) = scene.archive("me/control:v1");
    let both = [agent.as_path(), control.as_path()];
    scene.login(PASSWORD);
    let pushed = scene.push(&both, true);
    assert_eq!(pushed.code, 0, "{pushed:?}");
    assert_eq!(
        scene.tagged_manifest("me/agent", "v1"),
        Some(agent_digest.clone())
    );
    assert_eq!(
        scene.tagged_manifest("me/control", "v1"),
        Some(control_digest)
    );
    assert!(pushed.stderr.contains(&agent_digest), "{pushed:?}");
    let again = scene.push(&both, true);
    assert_eq!(again.code, 0, "what is there already: {again:?}");
}

#[test]
fn image_for_two_architectures_is_pushed_as_an_index() {
    let scene = RegistryFixture::new();
    let (agent, digest) = scene.archive_for("me/agent:v1", &Architecture::ALL);
    scene.login(PASSWORD);
    let pushed = scene.push(&[&agent], true);
    assert_eq!(pushed.code, 0, "{pushed:?}");
    assert_eq!(
        scene.tagged_manifest("me/agent", "v1"),
        Some(digest.clone())
    );
    assert_eq!(
        pushed.stdout.trim(),
        format!("{REGISTRY_HOST}/me/agent@{digest}")
    );

    let blob = |digest: &str| -> serde_json::Value {
        let hex = digest.trim_start_matches("sha256:");
        let path = format!(
            "storage/docker/registry/v2/blobs/sha256/{}/{hex}/data",
            &hex[..2]
        );
        serde_json::from_slice(&fs::read(scene.path(&path)).unwrap()).unwrap()
    };
    let manifests = blob(&digest)["manifests"].clone();
    let manifests = manifests.as_array().unwrap();
    assert_eq!(manifests.len(), 2);
    for (manifest, architecture) in manifests.iter().zip(["amd64", "arm64"]) {
        let digest = manifest["digest"].as_str().unwrap();
        let revision = digest.replace(':', "/");
        let link = format!(
            "storage/docker/registry/v2/repositories/me/agent/_manifests/revisions/{revision}/link"
        );
        assert_eq!(fs::read_to_string(scene.path(&link)).unwrap(), digest);
        let config = blob(blob(digest)["config"]["digest"].as_str().unwrap());
        assert_eq!(config["architecture"], architecture);
    }
}

#[test]
fn helm_installs_from_the_registry_without_values() {
    let scene = RegistryFixture::new();
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../charts/ambit");
    let hub = format!("{REGISTRY_HOST}/me");
    let naming = ImageNaming {
        hub: &hub,
        tag: "v1",
    };
    let chart = ambit_images::write_chart(&directory, &naming, scene.directory.path()).unwrap();
    scene.login(PASSWORD);
    let pushed = scene.push(&[&chart], true);
    assert_eq!(pushed.code, 0, "{pushed:?}");

    let template = |chart: &str, more: &[&str]| {
        let certificate = format!("--ca-file={}", scene.path("cert.pem").display());
        let config = format!("--registry-config={}", scene.path("config.json").display());
        let home = format!("HOME={}", scene.directory.path().display());
        let helm = helm_command().get_program().to_str().unwrap().to_owned();
        let command = ["/usr/bin/env", &home, &helm, "template", "mesh", chart];
        let flags = [certificate.as_str(), &config, "--kube-version=1.35.0"];
        let command = [&command[..], &flags, more].concat();
        let output = scene
            .mesh
            .client()
            .output("legacy/client", &command)
            .unwrap();
        assert_eq!(output.code, 0, "{chart}: {output:?}");
        output.stdout
    };
    let version = ["--version", env!("CARGO_PKG_VERSION")];
    let pulled = template(&format!("oci://{hub}/charts/ambit"), &version);
    let images = format!("global.hub={hub},global.tag=v1");
    let local = template(directory.to_str().unwrap(), &["--set-string", &images]);
    assert_eq!(pulled, local);
    assert!(
        pulled.contains(&format!("image: {hub}/control:v1")),
        "{pulled}"
    );
}

#[test]
fn rejected_or_invalid_images_are_not_pushed() {
    let scene = RegistryFixture::new();
    let (agent, _) = scene.archive("me/agent:v1");
    let (control, _) = scene.archive("me/control:v1");
    let truncated = scene.path("truncated.tar");
    let bytes = fs::read(&control).unwrap();
    fs::write(&truncated, &bytes[..bytes.len() / 2]).unwrap();
    let changed = scene.path("changed.tar");
    let text = bytes.windows(11).position(|part| part == b"me/control:");
    let mut other = bytes.clone();
    // The digest of its layer is wrong; the name in its index is read first.
    let first = text.unwrap();
    let second = first
        + 11
        + bytes[first + 11..]
            .windows(11)
            .position(|part| part == b"me/control:")
            .unwrap();
    other[second] = b'M';
    fs::write(&changed, other).unwrap();
    for (password, trusts, archives, why) in [
        ("", true, vec![&agent], "docker login registry.legacy"),
        ("wrong", true, vec![&agent], "docker login registry.legacy"),
        (PASSWORD, false, vec![&agent], "certificate"),
        (
            PASSWORD,
            true,
            vec![&agent, &truncated],
            "truncated.tar is no complete archive",
        ),
        (PASSWORD, true, vec![&agent, &changed], "has other bytes"),
        (
            PASSWORD,
            true,
            vec![&agent, &scene.path("absent.tar")],
            "absent.tar is no complete archive",
        ),
    ] {
        scene.login(password);
        let archives: Vec<&Path> = archives.into_iter().map(|path| path.as_path()).collect();
        let refused = scene.push(&archives, trusts);
        assert_eq!(refused.code, 1, "{why}: {refused:?}");
        assert!(refused.stderr.contains(why), "{why}: {refused:?}");
        assert_eq!(scene.tagged_manifest("me/agent", "v1"), None, "{why}");
    }
}
