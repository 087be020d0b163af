//! Writes the chart as an OCI artifact, as `helm push` does with a package:
//! <https://helm.sh/docs/topics/registries/>.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::{
    ImageNaming, LayerTree,
    archive::{Blob, Manifest},
};

const CHART_CONFIG_MEDIA_TYPE: &str = "application/vnd.cncf.helm.config.v1+json";
const CHART_CONTENT_MEDIA_TYPE: &str = "application/vnd.cncf.helm.chart.content.v1.tar+gzip";

/// Writes the chart in a directory to `out` as an OCI archive, named `HUB/charts/NAME:VERSION`. Its default values have
/// the images of `naming`, so that an installation needs no values. Returns the archive's path.
///
/// # Errors
///
/// If the directory is not a chart with values of images.
pub fn write_chart(directory: &Path, naming: &ImageNaming<'_>, out: &Path) -> Result<PathBuf> {
    fs::create_dir_all(out)?;
    let metadata = fs::read_to_string(directory.join("Chart.yaml"));
    let metadata = metadata.with_context(|| format!("{} is no chart", directory.display()))?;
    let metadata: Value = serde_saphyr::from_str(&metadata).context("Chart.yaml")?;
    let field = |name: &str| {
        let text = metadata.get(name).and_then(Value::as_str);
        text.with_context(|| format!("Chart.yaml has no {name}"))
    };
    let (name, version) = (field("name")?, field("version")?);
    let mut tree = LayerTree::default();
    add(&mut tree, directory, name, naming)?;
    let manifest = Manifest {
        config: (Blob::json(&metadata), CHART_CONFIG_MEDIA_TYPE),
        layers: &[Blob::new(tree.to_tar_gz()?)],
        layer_media_type: CHART_CONTENT_MEDIA_TYPE,
    };
    let path = out.join("chart.tar");
    manifest.write(&naming.chart_name(name, version), &path)?;
    Ok(path)
}

/// Adds a directory of the chart to `tree`, below `prefix`.
fn add(
    tree: &mut LayerTree,
    directory: &Path,
    prefix: &str,
    naming: &ImageNaming<'_>,
) -> Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let file = entry.file_name().to_string_lossy().into_owned();
        let (path, name) = (entry.path(), format!("{prefix}/{file}"));
        if file.starts_with('.') {
            continue;
        }
        if entry.file_type()?.is_dir() {
            add(tree, &path, &name, naming)?;
        } else if file == "values.yaml" {
            let values = fs::read_to_string(&path)?;
            tree.add_text_file(&name, &with_images(&values, naming)?);
        } else {
            tree.add_copy(&name, &path, 0o644)?;
        }
    }
    Ok(())
}

/// Returns the chart's values with registry, path and tag of the images.
fn with_images(values: &str, naming: &ImageNaming<'_>) -> Result<String> {
    let mut text = values.to_owned();
    for (line, value) in [
        ("\n  hub: ambit\n", naming.hub),
        ("\n  tag: \"\"\n", naming.tag),
    ] {
        ensure!(
            text.matches(line).count() == 1,
            "values.yaml does not have the line {line:?} once"
        );
        let key = line.split_inclusive(": ").next().unwrap_or_default();
        text = text.replace(line, &format!("{key}{}\n", serde_json::to_string(value)?));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMING: ImageNaming<'_> = ImageNaming {
        hub: "registry.example/a \"b\"",
        tag: "1",
    };

    #[test]
    fn values_name_the_images() {
        let values = "global:\n  # Of images.\n  hub: ambit\n  tag: \"\"\nother: {tag: x}\n";
        let expected = "global:\n  # Of images.\n  hub: \"registry.example/a \\\"b\\\"\"\n  tag: \"1\"\nother: {tag: x}\n";
        assert_eq!(with_images(values, &NAMING).unwrap(), expected);
        assert!(with_images("global: {}\n", &NAMING).is_err());
    }

    #[test]
    fn equal_charts_produce_equal_bytes() {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| fs::write(directory.path().join(name), text).unwrap();
        file("Chart.yaml", "name: mesh\nversion: 1.2.3\n");
        file("values.yaml", "global:\n  hub: ambit\n  tag: \"\"\n");
        file(".helmignore", "*.orig\n");
        let write = |out: &str| {
            let out = directory.path().join(out);
            let written = write_chart(directory.path(), &NAMING, &out).unwrap();
            let bytes = fs::read(written).unwrap();
            fs::remove_dir_all(out).unwrap();
            bytes
        };
        let bytes = write("one");
        assert_eq!(bytes, write("two"));
        let name = b"/charts/mesh:1.2.3";
        assert!(bytes.windows(name.len()).any(|part| part == name));
    }
}
