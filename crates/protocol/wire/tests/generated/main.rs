//! Comparison of the checked-in code in `src/generated` with what the files in `proto` generate. It is a test, so that
//! building Ambit needs neither a protobuf compiler nor this generator, and so that the generator is built with the
//! libraries of the other tests. With the environment variable `AMBIT_WRITE_GENERATED`, which `cargo xtask gen` sets, it
//! writes the code instead.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod schema;

use std::{
    collections::BTreeMap,
    env,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
};

/// Environment variable with which the generated code is written.
const WRITE: &str = "AMBIT_WRITE_GENERATED";

/// Files in `proto` for which code is generated, without `.proto`.
const FILES: [&str; 13] = [
    "workload",
    "authorization",
    "citadel",
    "zds",
    "discovery",
    "ambit",
    "waypoint",
    "spiffe_workload",
    "spire_types",
    "spire_delegated_identity",
    "envoy_core",
    "ext_authz",
    "rate_limit",
];

/// Messages with private keys, for which `wire` implements `Debug` without the keys.
const PRIVATE: [&str; 2] = [
    ".X509SVID",
    ".spire.api.agent.delegatedidentity.v1.X509SVIDWithKey",
];

#[test]
fn checked_in_code_is_what_the_protobuf_files_generate() {
    let checked_in = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/generated");
    if env::var_os(WRITE).is_some() {
        generate(&checked_in);
        return;
    }
    let out = tempfile::tempdir().unwrap();
    generate(out.path());
    let generated = read_directory(out.path());
    let checked_in = read_directory(&checked_in);
    let names = |files: &BTreeMap<OsString, String>| files.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&generated), names(&checked_in));
    for (name, code) in generated {
        assert!(
            checked_in.get(&name) == Some(&code),
            "{} is stale: run `cargo xtask gen`",
            name.display()
        );
    }
}

/// Writes the code that the files in `proto` generate to the directory `out`.
fn generate(out: &Path) {
    let proto = Path::new(env!("CARGO_MANIFEST_DIR")).join("proto");
    let files: Vec<PathBuf> = FILES
        .iter()
        .map(|name| proto.join(format!("{name}.proto")))
        .collect();
    let descriptors = protox::compile(files, [proto]).unwrap();
    fs::write(out.join("schema.rs"), schema::render(&descriptors)).unwrap();
    let mut prost = prost_build::Config::new();
    // Sorted, so that the same record has the same bytes, and so the same version, everywhere.
    prost
        .bytes(["."])
        .btree_map([".istio.workload.Workload.services"])
        .skip_debug(PRIVATE)
        .out_dir(out);
    tonic_prost_build::configure()
        .build_transport(true)
        .out_dir(out)
        .compile_fds_with_config(descriptors, prost)
        .unwrap();
}

/// Returns the names and contents of the files in a directory.
fn read_directory(directory: &Path) -> BTreeMap<OsString, String> {
    let entries = fs::read_dir(directory).unwrap().map(Result::unwrap);
    entries
        .map(|entry| {
            let text = fs::read_to_string(entry.path()).unwrap();
            (entry.file_name(), text)
        })
        .collect()
}
