//! `cargo xtask images`: Ambit's container images and chart as OCI archives, without a daemon.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::Command,
};

use ambit_images::{Architecture, Binaries, ImageNaming};
use anyhow::{Context, Result, bail, ensure};

use crate::{
    cross, plugin,
    setup::{self, Purpose},
    shell, static_binary,
};

/// Packages with dynamically linked programs in images.
pub(crate) const PACKAGES: [&str; 4] = [
    "ambit-agent",
    "ambit-control",
    "ambit-cli",
    "ambit-lab-tool",
];

/// Packages with statically linked programs of their own names: those of which a mesh runs many processes, and the CNI
/// plugin, which runs on hosts.
pub(crate) const STATIC_PROGRAMS: [&str; 3] = ["ambit-node-proxy", "ambit-waypoint", "ambit-cni"];

/// Options of `cargo xtask images`.
struct Options {
    release: bool,
    /// Architectures of the images, in the order of their variants.
    architectures: Vec<Architecture>,
    out: PathBuf,
    hub: String,
    tag: String,
    push: bool,
    load: Option<LoadTarget>,
}

/// Destination into which images are loaded without a registry.
enum LoadTarget {
    /// Cluster of `kind`; the default cluster without a name.
    Kind(Option<String>),
    /// Cluster of `k3d`; the default cluster without a name.
    K3d(Option<String>),
    /// Profile of `minikube`; the default profile without a name.
    Minikube(Option<String>),
    /// Containerd on this machine, in the namespace that the kubelet uses.
    Containerd,
}

impl LoadTarget {
    fn parse(text: &str) -> Result<Self> {
        let (tool, name) = match text.split_once('=') {
            Some((tool, name)) => (tool, Some(name.to_owned())),
            None => (text, None),
        };
        Ok(match (tool, &name) {
            ("kind", _) => Self::Kind(name),
            ("k3d", _) => Self::K3d(name),
            ("minikube", _) => Self::Minikube(name),
            ("containerd", None) => Self::Containerd,
            _ => bail!(
                "--load {text}: there are kind[=CLUSTER], k3d[=CLUSTER], minikube[=PROFILE], and containerd (of this \
                 machine); `cargo xtask cluster load` is for the cluster of tests"
            ),
        })
    }

    /// Returns the command that loads an archive into this destination.
    fn command(&self, archive: &Path) -> Vec<OsString> {
        let (words, flag, name): (&[&str], _, _) = match self {
            Self::Kind(name) => (&["kind", "load", "image-archive"], "--name", name),
            Self::K3d(name) => (&["k3d", "image", "import"], "--cluster", name),
            Self::Minikube(name) => (&["minikube", "image", "load"], "--profile", name),
            Self::Containerd => (
                &["ctr", "--namespace", "k8s.io", "images", "import"],
                "",
                &None,
            ),
        };
        let mut command: Vec<OsString> = words.iter().map(Into::into).collect();
        if let Some(name) = name {
            command.extend([flag.into(), name.into()]);
        }
        command.push(archive.into());
        command
    }
}

/// Builds the binaries, writes the images, and pushes or loads them as requested.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let options = parse(args)?;
    setup::ensure(Purpose::Images)?;
    let mut built = Vec::new();
    for architecture in options.architectures.iter().copied() {
        if !architecture.is_native() {
            setup::ensure(Purpose::Cross(architecture))?;
        }
        let directory = if options.release {
            build_release(architecture)?
        } else {
            build_debug()?
        };
        built.push((architecture, directory));
    }
    let archives = write(&built, &options.out, &options.hub, &options.tag)?;
    let chart = write_chart_archive(&options)?;
    for archive in archives.iter().chain([&chart]) {
        eprintln!("    {}", archive.display());
    }
    if options.push {
        // The chart last: its images are available when it is.
        let all: Vec<_> = archives.iter().cloned().chain([chart]).collect();
        push(&all)?;
    }
    let Some(load) = &options.load else {
        return Ok(());
    };
    for archive in &archives {
        let command = load.command(archive);
        let (program, arguments) = command.split_first().context("no command")?;
        let what = format!("load {}", archive.display());
        shell::run(&what, Command::new(program).args(arguments))?;
    }
    Ok(())
}

fn parse(args: &[String]) -> Result<Options> {
    let mut options = Options {
        release: false,
        architectures: vec![Architecture::native()?],
        out: shell::target_dir().join("images"),
        hub: "ambit".to_owned(),
        tag: env!("CARGO_PKG_VERSION").to_owned(),
        push: false,
        load: None,
    };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut value = || args.next().with_context(|| format!("{arg} wants a value"));
        match arg.as_str() {
            "--release" => options.release = true,
            "--arch" => options.architectures = architectures(value()?)?,
            "--out" => options.out = Path::new(value()?).to_path_buf(),
            "--hub" => options.hub.clone_from(value()?),
            "--tag" => options.tag.clone_from(value()?),
            "--push" => {
                options.hub.clone_from(value()?);
                options.push = true;
            }
            "--load" => options.load = Some(LoadTarget::parse(value()?)?),
            other => bail!(
                "unknown argument {other}; there are --release, --arch, --out, --hub, --tag, --push and --load"
            ),
        }
    }
    let all_native = options.architectures.iter().all(|a| a.is_native());
    ensure!(
        options.release || all_native,
        "--arch: only optimised programs are built for other architectures; add --release"
    );
    Ok(options)
}

/// Parses a list of architectures, which may contain each only once.
fn architectures(list: &str) -> Result<Vec<Architecture>> {
    let mut found = Vec::new();
    for name in list.split(',') {
        let architecture = Architecture::parse(name).context("--arch")?;
        ensure!(!found.contains(&architecture), "--arch names {name} twice");
        found.push(architecture);
    }
    Ok(found)
}

/// Writes the chart as an OCI archive; its default values name the images.
fn write_chart_archive(options: &Options) -> Result<PathBuf> {
    let directory = shell::workspace_root().join("charts/ambit");
    let naming = ImageNaming {
        hub: &options.hub,
        tag: &options.tag,
    };
    ambit_images::write_chart(&directory, &naming, &options.out).context("cannot write the chart")
}

/// Pushes archives to the registry that their names begin with.
fn push(archives: &[PathBuf]) -> Result<()> {
    let mut cargo = shell::cargo(&["run", "--quiet", "--package", "ambit-image-push", "--"]);
    shell::run("push the images", cargo.args(archives))
}

/// Writes images of built programs, with the names that clusters for tests and development use.
pub(crate) fn cluster_images(programs: &Path) -> Result<Vec<PathBuf>> {
    write_cluster_images(programs, "cluster/ambit")
}

/// Writes images of the measured programs, with the names that the benchmarks' cluster uses.
pub(crate) fn benchmark_images(programs: &Path) -> Result<Vec<PathBuf>> {
    write_cluster_images(programs, "cluster/ambit-release")
}

fn write_cluster_images(binaries: &Path, out: &str) -> Result<Vec<PathBuf>> {
    let out = shell::target_dir().join(out);
    let built = [(Architecture::native()?, binaries.to_path_buf())];
    write(&built, &out, "ambit", "dev")
}

/// Builds release binaries for images in a separate target directory, checks that they start, and returns their
/// directory.
fn build_release(architecture: Architecture) -> Result<PathBuf> {
    let target = static_binary::target_dir();
    let mut cargo = shell::cargo(&["build", "--locked", "--release", "--bins"]);
    cargo.arg("--target-dir").arg(&target);
    cross::configure(&mut cargo, architecture)?;
    for package in PACKAGES {
        cargo.args(["--package", package]);
    }
    let what = format!("build the binaries, {}", architecture.name());
    shell::run(&what, &mut cargo)?;
    for program in STATIC_PROGRAMS {
        static_binary::build(program, program, architecture)?;
    }
    let directory = cross::release_dir(&target, architecture);
    for name in ambit_images::program_names() {
        cross::check_start(&directory.join(name), architecture)?;
    }
    Ok(directory)
}

/// Builds unoptimised programs, which takes less time than a release build, and returns their directory.
pub(crate) fn build_debug() -> Result<PathBuf> {
    let mut cargo = shell::cargo(&["build", "--bins"]);
    shell::run("build the binaries", &mut cargo)?;
    Ok(shell::target_dir().join("debug"))
}

fn write(
    built: &[(Architecture, PathBuf)],
    out: &Path,
    hub: &str,
    tag: &str,
) -> Result<Vec<PathBuf>> {
    let mut others = Vec::new();
    for (architecture, _) in built {
        others.push((
            plugin::build(*architecture)?,
            cross::busybox(*architecture)?,
        ));
    }
    let binaries: Vec<_> = built
        .iter()
        .zip(&others)
        .map(|((architecture, directory), (plugin, busybox))| Binaries {
            architecture: *architecture,
            directory,
            plugin,
            busybox,
        })
        .collect();
    ambit_images::write_images(&binaries, &ImageNaming { hub, tag }, out)
        .context("cannot write the images")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load_command(load: &str) -> String {
        let command = LoadTarget::parse(load).unwrap().command(Path::new("a.tar"));
        command.join(" ".as_ref()).into_string().unwrap()
    }

    #[test]
    fn images_are_loaded_with_the_command_of_each_tool() {
        for (load, words) in [
            ("kind", "kind load image-archive a.tar"),
            ("kind=dev", "kind load image-archive --name dev a.tar"),
            ("k3d=dev", "k3d image import --cluster dev a.tar"),
            ("minikube", "minikube image load a.tar"),
            ("containerd", "ctr --namespace k8s.io images import a.tar"),
        ] {
            assert_eq!(load_command(load), words);
        }
        for wrong in ["docker", "containerd=x", ""] {
            assert!(LoadTarget::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn images_that_are_pushed_have_the_names_they_are_pushed_to() {
        let words = ["--push", "registry.example.com/ambit", "--tag", "v1"];
        let options = parse(&words.map(str::to_owned)).unwrap();
        assert!(options.push && options.hub == "registry.example.com/ambit");
        assert!(parse(&["--push".to_owned()]).is_err());
    }

    #[test]
    fn architectures_are_named_once_and_foreign_ones_are_optimised() {
        let parsed = |words: &[&str]| {
            let words: Vec<_> = words.iter().map(|&word| word.to_owned()).collect();
            parse(&words).map(|options| options.architectures)
        };
        let both = parsed(&["--release", "--arch", "amd64,arm64"]).unwrap();
        assert_eq!(both, Architecture::ALL);
        for wrong in ["", "amd64,amd64", "arm64,", "riscv64"] {
            assert!(parsed(&["--release", "--arch", wrong]).is_err(), "{wrong}");
        }
        assert!(parsed(&["--arch", "amd64,arm64"]).is_err());
    }
}
