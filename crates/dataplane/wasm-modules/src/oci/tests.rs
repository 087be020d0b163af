//! Tests of image names, layers, and which servers may receive passwords.

use ambit_egress::Guard;
use ambit_fetch::AdmitAll;
use ambit_testkit::ScriptedServer;

use super::*;

/// Builds an HTTP client that may call servers on this machine.
fn local_client() -> Client {
    let local = vec!["127.0.0.1/32".parse().unwrap()];
    Client::new(Guard::new(local), "ambit-test")
}

fn server(client: &Client, is_insecure: bool) -> RegistryAccess<'_, AdmitAll> {
    RegistryAccess {
        client,
        admission: &AdmitAll,
        is_insecure,
    }
}

fn image(text: &str) -> Option<(String, String, String)> {
    let image = ImageReference::parse(text).ok()?;
    Some((image.registry, image.repository, image.reference))
}

#[test]
fn image_names_have_the_usual_defaults() {
    let digest = format!("sha256:{}", "a".repeat(64));
    for (text, registry, repository, reference) in [
        ("ghcr.io/a/b:v1", "ghcr.io", "a/b", "v1"),
        ("localhost:5000/b", "localhost:5000", "b", "latest"),
        ("10.0.0.1:5000/a/b:1", "10.0.0.1:5000", "a/b", "1"),
        ("a/b", "registry-1.docker.io", "a/b", "latest"),
        ("docker.io/a/b:2", "registry-1.docker.io", "a/b", "2"),
        ("b:2", "registry-1.docker.io", "library/b", "2"),
        (&format!("r.example/b@{digest}"), "r.example", "b", &digest),
        (
            &format!("r.example/b:1@{digest}"),
            "r.example",
            "b",
            &digest,
        ),
    ] {
        let expected = (
            registry.to_owned(),
            repository.to_owned(),
            reference.to_owned(),
        );
        assert_eq!(image(text), Some(expected), "{text}");
    }
    for wrong in [
        "",
        "r.example/",
        "r.example/a/../b",
        "r.example/a b",
        "r.example/a@md5:1",
        "r.example/a:1?x",
    ] {
        assert_eq!(image(wrong), None, "{wrong:?}");
    }
}

fn layer(name: &str, content: &[u8]) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(content.len().try_into().unwrap());
    header.set_mode(0o644);
    header.set_cksum();
    archive.append_data(&mut header, name, content).unwrap();
    archive.into_inner().unwrap()
}

#[test]
fn a_module_is_found_in_a_layer_packed_or_not() {
    let plain = layer("plugin.wasm", b"module");
    assert_eq!(unpack(&plain).unwrap(), b"module");
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut packed, &layer("./plugin.wasm", b"module")).unwrap();
    assert_eq!(unpack(&packed.finish().unwrap()).unwrap(), b"module");
    assert!(matches!(
        unpack(&layer("sub/plugin.wasm", b"x")),
        Err(OciError::NoModule)
    ));
    assert!(matches!(
        unpack(b"nonsense"),
        Err(OciError::NoModule | OciError::InvalidLayer)
    ));
    assert!(matches!(unpack(&plain[..515]), Err(OciError::InvalidLayer)));
}

#[test]
fn plaintext_passwords_go_only_to_their_registry() {
    let client = local_client();
    let image = ImageReference::parse("r.example:5000/a:1").unwrap();
    let allowed = |is_insecure: bool, realm: &str| {
        let registry = Registry {
            server: server(&client, is_insecure),
            image: &image,
            basic_authorization: None,
            authorization: None,
        };
        registry.allow_realm(realm)
    };
    for (realm, with_tls, without) in [
        ("https://r.example:5000/token", true, true),
        ("https://auth.example/token?a=b", true, true),
        ("http://r.example:5000/token", false, true),
        ("http://r.example/token", false, false),
        ("http://auth.example/token", false, false),
        ("http://r.example:5000@auth.example/token", false, false),
        ("http://user@r.example:5000/token", false, false),
        ("ftp://r.example:5000/token", false, false),
    ] {
        for (is_insecure, may) in [(false, with_tls), (true, without)] {
            let is = allowed(is_insecure, realm);
            let fits = if may {
                is.is_ok()
            } else {
                matches!(is, Err(OciError::ForbiddenRealm(_)))
            };
            assert!(fits, "{realm} {is_insecure} {is:?}");
        }
    }
    for wrong in ["", "/token", "r.example", "http://", "http://a b/"] {
        let is = allowed(true, wrong);
        assert!(
            matches!(is, Err(OciError::UnsupportedChallenge(_))),
            "{wrong:?} {is:?}"
        );
    }
}

#[tokio::test]
async fn redirect_targets_never_get_the_registrys_password() {
    // Requests the credentials for the address in the path: the registry itself, which may receive
    // them.
    let other = ScriptedServer::new(|path| {
        format!("401 Who\r\nwww-authenticate: Bearer realm=\"http:/{path}/token\"")
    });
    let elsewhere = other.address;
    let registry = ScriptedServer::new(move |path| match path.strip_prefix("/v2/a/manifests/") {
        Some(own) => format!("307 There\r\nlocation: http://{elsewhere}/127.0.0.1:{own}"),
        None => "200 OK".to_owned(),
    });
    let own = registry.address;
    let image = ImageReference::parse(&format!("{own}/a:{}", own.port())).unwrap();
    let secret = format!("{{\"auths\": {{\"{own}\": {{\"auth\": \"c2VjcmV0\"}}}}}}");
    let client = local_client();
    let pulled = pull(server(&client, true), &image, secret.as_bytes()).await;
    let status = pulled.err().map(|error| error.to_string()).unwrap();
    assert!(
        status.ends_with("responds with 401 Unauthorized"),
        "{status}"
    );
    let manifest_path = format!("/v2/a/manifests/{}", own.port());
    assert_eq!(registry.received(), [(manifest_path, false)]);
    assert_eq!(other.received().len(), 1);
}
