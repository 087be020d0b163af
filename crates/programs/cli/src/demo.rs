//! `ambit lab demo`: runs the example mesh. Programs call each other in the lab; for each call the command prints
//! client and server, their identities, the path and the policy that decided, and from a packet capture between the
//! nodes the plaintext that an eavesdropper could read.
//!
//! The command fails if a result differs from the manifests.

mod calls;
mod lab;
mod pods;
mod waypoint;
mod wire;

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    process::ExitCode,
};

use ambit_lab::{IpFamily, LAB_TOOL, Options, PrimaryCni, Status};

use crate::{CliError, ErrorKind, labs, output::print_line, readiness};
use calls::{CALLS_AFTER_POLICIES, CALLS_BEFORE_POLICIES};
use lab::Demo;

/// Manifests of the built-in example: file name and text.
const EXAMPLE_MANIFESTS: [(&str, &str); 4] = [
    (
        "namespaces.yaml",
        include_str!("../../../../examples/demo/namespaces.yaml"),
    ),
    (
        "shop.yaml",
        include_str!("../../../../examples/demo/shop.yaml"),
    ),
    (
        "legacy.yaml",
        include_str!("../../../../examples/demo/legacy.yaml"),
    ),
    (
        "policies.yaml",
        include_str!("../../../../examples/demo/policies.yaml"),
    ),
];

/// Starts the lab, makes the calls and prints their results; an error if a result differs from the manifests. With
/// `await_waypoint`, the steps of the waypoint start when the standard input ends, since its program is being built.
pub(crate) fn run(
    name: &str,
    manifests: Option<PathBuf>,
    ip_family: IpFamily,
    keep: bool,
    await_waypoint: bool,
) -> Result<ExitCode, CliError> {
    let name = if name == "default" {
        format!("demo-{}", std::process::id())
    } else {
        name.to_owned()
    };
    let directory = ManifestDir::prepare(manifests)?;
    let options = lab_options(&name, &directory.0, ip_family, await_waypoint)?;
    let client = readiness::launch_lab(&options)?;
    let shown = run_steps(
        &Demo {
            client: client.clone(),
            name: name.clone(),
        },
        &directory.0,
        await_waypoint,
    );
    if keep {
        std::mem::forget(directory);
        print_line(&format!(
            "\nThe lab stays up: ambit lab --name {name} status"
        ))?;
    } else {
        client.down().map_err(labs::client_error)?;
    }
    match shown? {
        0 => {
            print_line("\nEverything went as the manifests promise.")?;
            Ok(ExitCode::SUCCESS)
        }
        faults => Err(CliError::new(
            ErrorKind::Failed,
            format!("{faults} things went otherwise"),
        )),
    }
}

/// Temporary directory with a copy of the manifests, which the demonstration may change; removed when dropped.
struct ManifestDir(PathBuf);

impl ManifestDir {
    fn prepare(directory: Option<PathBuf>) -> Result<Self, CliError> {
        let failed = |error: std::io::Error| {
            CliError::new(ErrorKind::Failed, "cannot write the example's manifests")
                .with_source(error)
        };
        let path = std::env::temp_dir().join(format!("ambit-demo-{}", std::process::id()));
        fs::create_dir_all(&path).map_err(failed)?;
        let copy = Self(path);
        match directory {
            None => {
                for (file, text) in EXAMPLE_MANIFESTS {
                    fs::write(copy.0.join(file), text).map_err(failed)?;
                }
            }
            Some(directory) => {
                for entry in fs::read_dir(&directory).map_err(failed)? {
                    let entry = entry.map_err(failed)?;
                    fs::copy(entry.path(), copy.0.join(entry.file_name())).map_err(failed)?;
                }
            }
        }
        Ok(copy)
    }
}

impl Drop for ManifestDir {
    fn drop(&mut self) {
        let _it_is_gone = fs::remove_dir_all(&self.0);
    }
}

fn lab_options(
    name: &str,
    manifests: &Path,
    ip_family: IpFamily,
    await_waypoint: bool,
) -> Result<Options, CliError> {
    let ambit = std::env::current_exe().map_err(|error| {
        CliError::new(ErrorKind::Failed, "cannot find this binary").with_source(error)
    })?;
    let bin_dir = ambit.parent().unwrap_or_else(|| Path::new(".")).to_owned();
    if !bin_dir.join(LAB_TOOL).is_file() {
        let what = format!("{} has no {LAB_TOOL}", bin_dir.display());
        return Err(CliError::new(ErrorKind::NotFound, what)
            .with_hint("pods of the example run it: build all binaries (`cargo build --bins`)"));
    }
    Ok(Options {
        name: name.to_owned(),
        manifests: manifests.to_owned(),
        nodes: 2,
        ip_family,
        node_proxies: BTreeMap::new(),
        bin_dir,
        ambit,
        mesh: true,
        requires_waypoint: !await_waypoint,
        primary_cni: PrimaryCni::Lab,
        cni_dir: "/usr/lib/cni".into(),
        user_namespace: false,
        env: BTreeMap::new(),
    })
}

fn run_steps(demo: &Demo, manifests: &Path, await_waypoint: bool) -> Result<usize, CliError> {
    print_line("Two nodes; namespace shop is in the mesh, namespace legacy is not.\n")?;
    let status = demo.wait("all pods are ready", readiness::all_ready)?;
    demo.wait_for_proxies(&status)?;
    let mut faults = demo.run_calls(&status, &CALLS_BEFORE_POLICIES)?;

    print_line("\nNow namespace legacy joins: one label, no pod is restarted.\n")?;
    let uids = |status: &Status| {
        status
            .pods
            .iter()
            .map(|pod| pod.uid.clone())
            .collect::<Vec<_>>()
    };
    let label = "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: legacy\n  labels:\n    \
                 istio.io/dataplane-mode: ambient\n---\n";
    let path = manifests.join("namespaces.yaml");
    let text = fs::read_to_string(&path).unwrap_or_default();
    let text = text.replace(
        "metadata:\n  name: legacy\n",
        "metadata:\n  name: legacy-was-here\n",
    );
    fs::write(&path, format!("{label}{text}")).map_err(|error| {
        CliError::new(ErrorKind::Failed, "cannot change a manifest").with_source(error)
    })?;
    let joined = demo.wait("all pods are captured", |status| {
        status.pods.iter().all(|pod| pod.captured)
    })?;
    if uids(&status) != uids(&joined) {
        print_line("  FAULT: a pod was replaced")?;
        faults += 1;
    }
    demo.wait_for_proxies(&joined)?;
    faults += demo.run_calls(&joined, &CALLS_AFTER_POLICIES)?;
    if await_waypoint {
        print_line("\nWaiting until the waypoint's program is built.")?;
        io::copy(&mut io::stdin(), &mut io::sink()).map_err(|error| {
            CliError::new(ErrorKind::Failed, "cannot read the standard input").with_source(error)
        })?;
    }
    faults += waypoint::run_steps(demo, manifests)?;
    Ok(faults)
}
