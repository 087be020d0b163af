//! Builds the container images of Ambit, and those that tests need: collects their files and writes OCI archives
//! without a daemon.
#![forbid(unsafe_code)]

mod architecture;
mod archive;
mod chart;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};

pub use architecture::{Architecture, has_interpreter};
pub use archive::{Blob, Image, LayerTree, Variant, hex_digest};
pub use chart::write_chart;

/// Path of Busybox on this machine, which the images include.
pub const BUSYBOX: &str = "/bin/busybox";

/// User (`UID:GID`) of images that need no privileges.
const UNPRIVILEGED_USER: &str = "65532:65532";

/// Binaries of Ambit's images for one architecture.
#[derive(Debug)]
pub struct Binaries<'a> {
    /// Architecture for which the binaries were built.
    pub architecture: Architecture,
    /// Directory that contains `ambit`, `ambit-lab-tool`, `ambit-agent`, `ambit-node-proxy`, `ambit-control` and
    /// `ambit-waypoint`.
    pub directory: &'a Path,
    /// Path of the CNI plugin, which must be linked statically, since it runs on hosts.
    pub plugin: &'a Path,
    /// Path of a statically linked Busybox for the image of tools.
    pub busybox: &'a Path,
}

/// Registry and tag in the names of Ambit's images: `HUB/agent:TAG` and so on.
#[derive(Debug)]
pub struct ImageNaming<'a> {
    /// Registry and path before the images' names.
    pub hub: &'a str,
    /// Tag of the images.
    pub tag: &'a str,
}

impl ImageNaming<'_> {
    /// Returns the full name of an image, as container runtimes store it: kubelets expand
    /// `ambit/agent` to `docker.io/ambit/agent`, and do not find an image that was imported under
    /// the short name.
    fn image_name(&self, image: &str) -> String {
        self.with_hub(&format!("{image}:{}", self.tag))
    }

    /// Returns the full name of a chart: `HUB/charts/NAME:VERSION`.
    fn chart_name(&self, chart: &str, version: &str) -> String {
        // A tag has no plus sign; Helm reads an underscore as one.
        self.with_hub(&format!("charts/{chart}:{}", version.replace('+', "_")))
    }

    fn with_hub(&self, name: &str) -> String {
        let short = format!("{}/{name}", self.hub);
        let (first, _) = short.split_once('/').unwrap_or_default();
        let is_host = first.contains(['.', ':']) || first == "localhost";
        if is_host {
            short
        } else {
            format!("docker.io/{short}")
        }
    }
}

/// Ambit's images: name, path of the program that is the entry point, and user.
const IMAGES: [(&str, &str, &str); 5] = [
    ("agent", "/ambit-agent", ""),
    ("node-proxy", "/ambit-node-proxy", ""),
    ("control", "/ambit-control", UNPRIVILEGED_USER),
    ("waypoint", "/ambit-waypoint", UNPRIVILEGED_USER),
    ("tools", "/usr/bin/ambit", ""),
];

/// Name of the second program in the image `tools`, besides `ambit`. The program contains servers and clients for pods.
const LAB_TOOL: &str = "ambit-lab-tool";

/// Writes Ambit's images to `out`, each with a variant for every architecture of `binaries`; returns the archives'
/// paths.
///
/// # Errors
///
/// If a binary or one of its shared libraries cannot be read.
pub fn write_images(
    binaries: &[Binaries<'_>],
    naming: &ImageNaming<'_>,
    out: &Path,
) -> Result<Vec<PathBuf>> {
    fs::create_dir_all(out)?;
    let mut variants: [Vec<Variant>; IMAGES.len()] = Default::default();
    for binaries in binaries {
        let contents = collect_contents(binaries, out)?;
        for (variants, tree) in variants.iter_mut().zip(contents.image_trees) {
            variants.push(Variant {
                architecture: binaries.architecture,
                layers: vec![contents.base_layer.clone(), tree.to_layer()?],
            });
        }
    }
    let mut archives = Vec::new();
    for ((name, entrypoint, user), variants) in IMAGES.into_iter().zip(variants) {
        let path = out.join(format!("{name}.tar"));
        let image = Image {
            name: &naming.image_name(name),
            variants,
            entrypoint: &[entrypoint],
            user,
        };
        image.write(&path)?;
        archives.push(path);
    }
    Ok(archives)
}

/// Returns the names of the images' programs except the CNI plugin: the entry points, and `ambit-lab-tool`.
pub fn program_names() -> impl Iterator<Item = &'static str> {
    let entrypoints = IMAGES.iter().map(|(_, path, _)| program_name(path));
    entrypoints.chain([LAB_TOOL])
}

fn program_name(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, name)| name)
}

/// Contents of the images for one architecture.
struct ImageContents {
    /// Base layer that all images share.
    base_layer: Blob,
    /// Files of each image besides those of the base layer, in the order of [`IMAGES`].
    image_trees: Vec<LayerTree>,
}

/// Collects the contents of the images for one architecture; stripped programs are written to `out`.
fn collect_contents(binaries: &Binaries<'_>, out: &Path) -> Result<ImageContents> {
    let architecture = binaries.architecture;
    let directory = out.join("stripped");
    fs::create_dir_all(&directory)?;
    let stripped = |from: &Path, name: &str| -> Result<PathBuf> {
        let to = directory.join(name);
        strip_symbols(architecture, from, &to)?;
        Ok(to)
    };
    let mut programs = vec![binaries.busybox.to_path_buf()];
    let mut trees = Vec::new();
    for (image, path, _) in IMAGES {
        let mut tree = LayerTree::default();
        let name = program_name(path);
        let program = stripped(&binaries.directory.join(name), name)?;
        tree.add_copy(path, &program, 0o755)?;
        programs.push(program);
        match image {
            "agent" => {
                let plugin = stripped(binaries.plugin, "ambit-cni")?;
                tree.add_copy("/opt/cni/bin/ambit-cni", &plugin, 0o755)?;
            }
            "tools" => {
                let tool = stripped(&binaries.directory.join(LAB_TOOL), LAB_TOOL)?;
                tree.add_copy(&format!("/usr/bin/{LAB_TOOL}"), &tool, 0o755)?;
                programs.push(tool);
                add_busybox(&mut tree, architecture, binaries.busybox)?;
            }
            _ => {}
        }
        trees.push(tree);
    }
    let layer = base_layer(architecture, &programs)?;
    fs::remove_dir_all(directory)?;
    Ok(ImageContents {
        base_layer: layer,
        image_trees: trees,
    })
}

/// Adds Busybox with a link for each of its programs.
fn add_busybox(tree: &mut LayerTree, architecture: Architecture, busybox: &Path) -> Result<()> {
    tree.add_copy("/bin/busybox", busybox, 0o755)?;
    for applet in command_output(run_command(architecture, busybox).arg("--list"))?.lines() {
        if applet != "busybox" {
            tree.add_symlink(&format!("/bin/{applet}"), "busybox");
        }
    }
    Ok(())
}

/// Writes an image with files of other projects, and with the shared libraries that its programs load. `files` has
/// pairs of paths, in the image and on this machine. The first file is the entry point; `links` are symbolic links,
/// each with its target.
///
/// # Errors
///
/// If a file or one of the shared libraries cannot be read.
pub fn write_file_image(
    name: &str,
    files: &[(String, PathBuf)],
    links: &[(String, &str)],
    user: &str,
    out: &Path,
) -> Result<()> {
    let architecture = Architecture::native()?;
    let (entrypoint, _) = files.first().context("an image without files")?;
    let sources: Vec<_> = files.iter().map(|(_, source)| source.clone()).collect();
    let base = base_layer(architecture, &sources)?;
    let mut tree = LayerTree::default();
    for (path, source) in files {
        tree.add_copy(path, source, 0o755)?;
    }
    for (path, target) in links {
        tree.add_symlink(path, target);
    }
    let image = Image {
        name,
        variants: vec![Variant::native(vec![base, tree.to_layer()?])?],
        entrypoint: &[entrypoint],
        user,
    };
    image.write(out)
}

/// Writes an image of one program with several names, the first of which is the entry point.
pub fn write_program_image(name: &str, program: &Path, called: &[&str], out: &Path) -> Result<()> {
    let architecture = Architecture::native()?;
    let stripped = out.with_extension("stripped");
    strip_symbols(architecture, program, &stripped)?;
    let path = |name: &str| format!("/usr/bin/{name}");
    let (first, others) = called.split_first().context("a program without a name")?;
    let links: Vec<_> = others.iter().map(|other| (path(other), *first)).collect();
    write_file_image(name, &[(path(first), stripped.clone())], &links, "", out)?;
    Ok(fs::remove_file(stripped)?)
}

/// Returns the base layer of all of Ambit's images: the C library, users, and public CA certificates.
fn base_layer(architecture: Architecture, programs: &[PathBuf]) -> Result<Blob> {
    let mut tree = LayerTree::default();
    for library in shared_libraries(architecture, programs)? {
        let source = library.strip_prefix('/').unwrap_or(&library);
        tree.add_copy(&library, &architecture.sysroot().join(source), 0o755)?;
    }
    tree.add_directory("/tmp", 0o1777);
    tree.add_text_file(
        "/etc/passwd",
        "root:x:0:0:root:/:/bin/sh\nnonroot:x:65532:65532:nonroot:/:/bin/sh\n",
    );
    tree.add_text_file("/etc/group", "root:x:0:\nnonroot:x:65532:\n");
    tree.add_text_file("/etc/nsswitch.conf", "hosts: files dns\n");
    let authorities = "/etc/ssl/certs/ca-certificates.crt";
    if Path::new(authorities).exists() {
        tree.add_copy(authorities, Path::new(authorities), 0o644)?;
    } else {
        tree.add_directory("/etc/ssl/certs", 0o755);
    }
    tree.to_layer()
}

/// Returns the paths of the shared libraries that the programs load, and of the dynamic loader.
fn shared_libraries(architecture: Architecture, programs: &[PathBuf]) -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for program in programs {
        if !has_interpreter(program)? {
            continue;
        }
        // With this variable, the loader lists libraries instead of starting the program; `ldd` sets it, too.
        let mut command = run_command(architecture, program);
        command.env("LD_TRACE_LOADED_OBJECTS", "1");
        let text = command_output(&mut command)?;
        found.extend(
            text.split_whitespace()
                .filter(|word| word.starts_with('/'))
                .map(|word| word.trim_end_matches(':').to_owned()),
        );
    }
    Ok(found)
}

/// Writes a copy of a program without its symbols and debug information.
///
/// # Errors
///
/// If the program does not exist, or the copy cannot be written.
pub fn strip_symbols(architecture: Architecture, from: &Path, to: &Path) -> Result<()> {
    command_output(
        Command::new(architecture.strip())
            .arg("-o")
            .arg(to)
            .arg(from),
    )
    .map(drop)
    .with_context(|| format!("cannot strip {}; is it built?", from.display()))
}

/// Returns a command that runs a program of an architecture, with an emulator if this machine has another architecture.
#[must_use]
pub fn run_command(architecture: Architecture, program: &Path) -> Command {
    let mut words = architecture.emulator_command();
    words.push(program.into());
    let mut words = words.into_iter();
    let mut command = Command::new(words.next().unwrap_or_default());
    command.args(words);
    command
}

/// Runs a command and returns its output; fails unless the command succeeds.
fn command_output(command: &mut Command) -> Result<String> {
    let name = command.get_program().display().to_string();
    let run = command.output();
    let run = run.with_context(|| format!("cannot start {name}"))?;
    let message = String::from_utf8_lossy(&run.stderr);
    ensure!(
        run.status.success(),
        "{name} failed ({}): {message}",
        run.status
    );
    Ok(String::from_utf8_lossy(&run.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_names_are_expanded_like_kubelets_do() {
        for (hub, full) in [
            ("ambit", "docker.io/ambit/agent:1"),
            ("me/ambit", "docker.io/me/ambit/agent:1"),
            ("localhost/ambit", "localhost/ambit/agent:1"),
            ("localhost:5000", "localhost:5000/agent:1"),
            ("ghcr.io/me", "ghcr.io/me/agent:1"),
            ("[::1]:5000/me", "[::1]:5000/me/agent:1"),
        ] {
            let naming = ImageNaming { hub, tag: "1" };
            assert_eq!(naming.image_name("agent"), full);
        }
    }
}
