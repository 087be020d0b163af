//! Container images that the cluster itself needs, such as that of the pause container.

use std::{
    fs,
    path::{Path, PathBuf},
};

use ambit_images::{Image, LayerTree, Variant};
use anyhow::Result;

use crate::node_config::PAUSE_IMAGE;

/// Writes the images as OCI archives to `out`; returns their paths.
pub(crate) fn write(bin: &Path, out: &Path) -> Result<Vec<PathBuf>> {
    fs::create_dir_all(out)?;
    let mut archives = Vec::new();
    for (program, name) in [("pause", PAUSE_IMAGE), ("coredns", "kube.local/coredns:1")] {
        let mut tree = LayerTree::default();
        let entrypoint = format!("/{program}");
        tree.add_copy(&entrypoint, &bin.join(program), 0o755)?;
        let path = out.join(format!("{program}.tar"));
        let image = Image {
            name,
            variants: vec![Variant::native(vec![tree.to_layer()?])?],
            entrypoint: &[&entrypoint],
            user: "",
        };
        image.write(&path)?;
        archives.push(path);
    }
    Ok(archives)
}
