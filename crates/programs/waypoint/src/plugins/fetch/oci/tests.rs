use super::*;

fn image(text: &str) -> Option<(String, String, String)> {
    let image = Image::parse(text).ok()?;
    Some((image.registry, image.repository, image.reference))
}

#[test]
fn images_are_named_as_everywhere() {
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
        let wanted = (
            registry.to_owned(),
            repository.to_owned(),
            reference.to_owned(),
        );
        assert_eq!(image(text), Some(wanted), "{text}");
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
        Err(OciError::NoModule | OciError::Layer)
    ));
    assert!(matches!(unpack(&plain[..515]), Err(OciError::Layer)));
}
