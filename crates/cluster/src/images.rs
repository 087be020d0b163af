//! Which images there are and what is in them: Ambit's own, and the two that a cluster needs itself.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

use crate::{
    archive::{Blob, Image, Tree},
    command::Tool,
    node_config::PAUSE_IMAGE,
};

/// Who runs in images of ours that need no privilege.
const UNPRIVILEGED: &str = "65532:65532";

/// What Ambit's images are made of.
#[derive(Debug)]
pub struct Binaries<'a> {
    /// The directory of `ambit`, `ambit-agent`, `ambit-node-proxy` and `ambit-control`.
    pub directory: &'a Path,
    /// The CNI plugin, which must be static: it runs on hosts.
    pub plugin: &'a Path,
}

/// How Ambit's images are called: `HUB/agent:TAG` and so on.
#[derive(Debug)]
pub struct Naming<'a> {
    /// Registry and path.
    pub hub: &'a str,
    /// The tag.
    pub tag: &'a str,
}

/// Writes Ambit's images to `out`; gives the archives.
pub fn write(binaries: &Binaries<'_>, naming: &Naming<'_>, out: &Path) -> Result<Vec<PathBuf>> {
    fs::create_dir_all(out)?;
    let names = ["ambit-agent", "ambit-node-proxy", "ambit-control", "ambit"];
    let stripped = out.join("stripped");
    fs::create_dir_all(&stripped)?;
    for name in names {
        strip(&binaries.directory.join(name), &stripped.join(name))?;
    }
    strip(binaries.plugin, &stripped.join("ambit-cni"))?;
    let busybox = Path::new("/bin/busybox");
    let mut dynamic: Vec<PathBuf> = names.map(|name| stripped.join(name)).into();
    dynamic.push(busybox.to_path_buf());
    let base = base(&dynamic)?;

    let image = |name: &str, tree: &Tree, entrypoint: &str, user: &str| -> Result<PathBuf> {
        let path = out.join(format!("{name}.tar"));
        let image = Image {
            name: &format!("{}/{name}:{}", naming.hub, naming.tag),
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
    let mut tools = Tree::default();
    program(&mut tools, "/usr/bin/ambit", "ambit")?;
    tools.copy("/bin/busybox", busybox, 0o755)?;
    for applet in Tool::new(busybox).arg("--list").output()?.lines() {
        if applet != "busybox" {
            tools.link(&format!("/bin/{applet}"), "busybox");
        }
    }
    let archives = vec![
        image("agent", &agent, "/ambit-agent", "")?,
        image("node-proxy", &proxy, "/ambit-node-proxy", "")?,
        image("control", &control, "/ambit-control", UNPRIVILEGED)?,
        image("tools", &tools, "/usr/bin/ambit", "")?,
    ];
    fs::remove_dir_all(stripped)?;
    Ok(archives)
}

/// Writes the images of the cluster's own parts; gives the archives.
pub(crate) fn write_own(bin: &Path, out: &Path) -> Result<Vec<PathBuf>> {
    fs::create_dir_all(out)?;
    let mut archives = Vec::new();
    for (program, name) in [("pause", PAUSE_IMAGE), ("coredns", "kube.local/coredns:1")] {
        let mut tree = Tree::default();
        let entrypoint = format!("/{program}");
        tree.copy(&entrypoint, &bin.join(program), 0o755)?;
        let path = out.join(format!("{program}.tar"));
        let image = Image {
            name,
            layers: vec![tree.layer()?],
            entrypoint: &[&entrypoint],
            user: "",
        };
        image.write(&path)?;
        archives.push(path);
    }
    Ok(archives)
}

/// What all of Ambit's images have in common: the C library, users, certificate authorities.
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

/// The shared libraries that any of the programs loads, and the loader.
fn libraries(programs: &[PathBuf]) -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for program in programs {
        // Fails for static programs, which need nothing.
        let Ok(text) = Tool::new("ldd").arg(program).output() else {
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
    Tool::new("strip")
        .arg("-o")
        .arg(to)
        .arg(from)
        .run()
        .with_context(|| format!("cannot strip {}; is it built?", from.display()))
}
