//! Ambit's container images, and those that tests need: their contents, written as OCI archives without a daemon.
#![forbid(unsafe_code)]

mod archive;
mod chart;

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};

pub use archive::{Blob, Image, Tree, hex_digest};
pub use chart::write_chart;

/// The file of this machine that the images contain beside the programs.
pub const BUSYBOX: &str = "/bin/busybox";

/// The user of images that need no privilege.
const UNPRIVILEGED: &str = "65532:65532";

/// The binaries of Ambit's images.
#[derive(Debug)]
pub struct Binaries<'a> {
    /// The directory of `ambit`, `ambit-agent`, `ambit-node-proxy`, `ambit-control` and `ambit-waypoint`.
    pub directory: &'a Path,
    /// The CNI plugin, which must be static: it runs on hosts.
    pub plugin: &'a Path,
}

/// The names of Ambit's images: `HUB/agent:TAG` and so on.
#[derive(Debug)]
pub struct Naming<'a> {
    /// Registry and path.
    pub hub: &'a str,
    /// Tag of the images.
    pub tag: &'a str,
}

impl Naming<'_> {
    /// The full name of an image, as container runtimes store it: kubelets expand `ambit/agent` to
    /// `docker.io/ambit/agent`, and do not find an image that was imported under the short name.
    fn of(&self, image: &str) -> String {
        self.full(&format!("{image}:{}", self.tag))
    }

    /// The full name of a chart: `HUB/charts/NAME:VERSION`.
    fn of_chart(&self, chart: &str, version: &str) -> String {
        // A tag has no plus sign; Helm reads an underscore as one.
        self.full(&format!("charts/{chart}:{}", version.replace('+', "_")))
    }

    fn full(&self, name: &str) -> String {
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

/// Writes Ambit's images to `out`; returns the archives.
pub fn write(binaries: &Binaries<'_>, naming: &Naming<'_>, out: &Path) -> Result<Vec<PathBuf>> {
    fs::create_dir_all(out)?;
    let names = [
        "ambit-agent",
        "ambit-node-proxy",
        "ambit-control",
        "ambit-waypoint",
        "ambit",
    ];
    let stripped = out.join("stripped");
    fs::create_dir_all(&stripped)?;
    for name in names {
        strip(&binaries.directory.join(name), &stripped.join(name))?;
    }
    strip(binaries.plugin, &stripped.join("ambit-cni"))?;
    let busybox = Path::new(BUSYBOX);
    let mut dynamic: Vec<PathBuf> = names.map(|name| stripped.join(name)).into();
    dynamic.push(busybox.to_path_buf());
    let base = base(&dynamic)?;

    let image = |name: &str, tree: &Tree, entrypoint: &str, user: &str| -> Result<PathBuf> {
        let path = out.join(format!("{name}.tar"));
        let image = Image {
            name: &naming.of(name),
            layers: vec![base.clone(), tree.layer()?],
            entrypoint: &[entrypoint],
            user,
        };
        image.write(&path)?;
        Ok(path)
    };
    let program =
        |tree: &mut Tree, path: &str, name: &str| tree.copy(path, &stripped.join(name), 0o755);
    let mut agent = Tree::default();
    program(&mut agent, "/ambit-agent", "ambit-agent")?;
    program(&mut agent, "/opt/cni/bin/ambit-cni", "ambit-cni")?;
    let mut proxy = Tree::default();
    program(&mut proxy, "/ambit-node-proxy", "ambit-node-proxy")?;
    let mut control = Tree::default();
    program(&mut control, "/ambit-control", "ambit-control")?;
    let mut waypoint = Tree::default();
    program(&mut waypoint, "/ambit-waypoint", "ambit-waypoint")?;
    let mut tools = Tree::default();
    program(&mut tools, "/usr/bin/ambit", "ambit")?;
    tools.copy("/bin/busybox", busybox, 0o755)?;
    for applet in output(busybox, &["--list".as_ref()])?.lines() {
        if applet != "busybox" {
            tools.link(&format!("/bin/{applet}"), "busybox");
        }
    }
    let archives = vec![
        image("agent", &agent, "/ambit-agent", "")?,
        image("node-proxy", &proxy, "/ambit-node-proxy", "")?,
        image("control", &control, "/ambit-control", UNPRIVILEGED)?,
        image("waypoint", &waypoint, "/ambit-waypoint", UNPRIVILEGED)?,
        image("tools", &tools, "/usr/bin/ambit", "")?,
    ];
    fs::remove_dir_all(stripped)?;
    Ok(archives)
}

/// Writes an image of one program that is called by several names, the first of them the entry point.
pub fn write_of_program(name: &str, program: &Path, called: &[&str], out: &Path) -> Result<()> {
    let stripped = out.with_extension("stripped");
    strip(program, &stripped)?;
    let base = base(std::slice::from_ref(&stripped))?;
    let mut tree = Tree::default();
    let path = |name: &str| format!("/usr/bin/{name}");
    let (first, others) = called.split_first().context("a program without a name")?;
    let entrypoint = path(first);
    tree.copy(&entrypoint, &stripped, 0o755)?;
    for other in others {
        tree.link(&path(other), first);
    }
    fs::remove_file(stripped)?;
    let image = Image {
        name,
        layers: vec![base, tree.layer()?],
        entrypoint: &[&entrypoint],
        user: "",
    };
    image.write(out)
}

/// The base of all of Ambit's images: the C library, users, certificate authorities.
fn base(programs: &[PathBuf]) -> Result<Blob> {
    let mut tree = Tree::default();
    for library in libraries(programs)? {
        tree.copy(&library, Path::new(&library), 0o755)?;
    }
    tree.directory("/tmp", 0o1777);
    tree.text(
        "/etc/passwd",
        "root:x:0:0:root:/:/bin/sh\nnonroot:x:65532:65532:nonroot:/:/bin/sh\n",
    );
    tree.text("/etc/group", "root:x:0:\nnonroot:x:65532:\n");
    tree.text("/etc/nsswitch.conf", "hosts: files dns\n");
    let authorities = "/etc/ssl/certs/ca-certificates.crt";
    if Path::new(authorities).exists() {
        tree.copy(authorities, Path::new(authorities), 0o644)?;
    } else {
        tree.directory("/etc/ssl/certs", 0o755);
    }
    tree.layer()
}

/// The shared libraries that the programs load, and the loader.
fn libraries(programs: &[PathBuf]) -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for program in programs {
        // Fails for static programs, which have none.
        let Ok(text) = output("ldd", &[program.as_os_str()]) else {
            continue;
        };
        found.extend(
            text.split_whitespace()
                .filter(|word| word.starts_with('/'))
                .map(|word| word.trim_end_matches(':').to_owned()),
        );
    }
    Ok(found)
}

fn strip(from: &Path, to: &Path) -> Result<()> {
    let arguments = ["-o".as_ref(), to.as_os_str(), from.as_os_str()];
    output("strip", &arguments)
        .map(drop)
        .with_context(|| format!("cannot strip {}; is it built?", from.display()))
}

/// The output of a program of this machine; an error unless it succeeds.
fn output(program: impl AsRef<OsStr>, arguments: &[&OsStr]) -> Result<String> {
    let name = program.as_ref().display().to_string();
    let run = Command::new(&program).args(arguments).output();
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
    fn names_are_those_that_kubelets_look_for() {
        for (hub, full) in [
            ("ambit", "docker.io/ambit/agent:1"),
            ("me/ambit", "docker.io/me/ambit/agent:1"),
            ("localhost/ambit", "localhost/ambit/agent:1"),
            ("localhost:5000", "localhost:5000/agent:1"),
            ("ghcr.io/me", "ghcr.io/me/agent:1"),
            ("[::1]:5000/me", "[::1]:5000/me/agent:1"),
        ] {
            let naming = Naming { hub, tag: "1" };
            assert_eq!(naming.of("agent"), full);
        }
    }
}
