//! Processor architectures of images, and Debian's cross toolchain for each.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail, ensure};

/// Processor architecture of programs and images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// The x86-64 architecture.
    Amd64,
    /// The 64-bit ARM architecture.
    Arm64,
}

impl Architecture {
    /// All architectures that images are built for.
    pub const ALL: [Self; 2] = [Self::Amd64, Self::Arm64];

    /// Returns the architecture of this machine.
    ///
    /// # Errors
    /// Fails on a machine whose architecture is not in [`Architecture::ALL`].
    pub fn native() -> Result<Self> {
        let machine = std::env::consts::ARCH;
        Self::ALL
            .into_iter()
            .find(|architecture| architecture.machine_name() == machine)
            .with_context(|| format!("images are built on x86_64 and aarch64, not on {machine}"))
    }

    /// Parses the architecture's name in images, as [`Architecture::name`] returns it.
    ///
    /// # Errors
    ///
    /// Fails for other names.
    pub fn parse(name: &str) -> Result<Self> {
        let mut all = Self::ALL.into_iter();
        let Some(found) = all.find(|architecture| architecture.name() == name) else {
            bail!("{name:?} is no architecture of the images; there are amd64 and arm64");
        };
        Ok(found)
    }

    /// Returns the name in images and in Debian: `GOARCH` of the OCI image specification.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    /// Returns the name that `uname -m` prints.
    #[must_use]
    pub fn machine_name(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64",
            Self::Arm64 => "aarch64",
        }
    }

    /// Returns the prefix of the architecture's GNU tools, such as the cross compiler. The architecture's directory
    /// below `/usr` has the same name.
    #[must_use]
    pub fn gnu_triple(self) -> String {
        format!("{}-linux-gnu", self.machine_name())
    }

    /// Returns the target of the Rust compiler.
    #[must_use]
    pub fn rust_target(self) -> String {
        format!("{}-unknown-linux-gnu", self.machine_name())
    }

    /// Returns whether this machine runs the architecture's programs without an emulator.
    #[must_use]
    pub fn is_native(self) -> bool {
        self.machine_name() == std::env::consts::ARCH
    }

    /// Returns the command prefix that runs a program on this machine: empty if native, otherwise
    /// QEMU with the C library of the cross compiler.
    #[must_use]
    pub fn emulator_command(self) -> Vec<OsString> {
        if self.is_native() {
            return Vec::new();
        }
        let emulator = format!("/usr/bin/qemu-{}-static", self.machine_name());
        vec![emulator.into(), "-L".into(), self.sysroot().into()]
    }

    /// Returns the root directory of the architecture's shared libraries.
    pub(crate) fn sysroot(self) -> PathBuf {
        if self.is_native() {
            PathBuf::from("/")
        } else {
            Path::new("/usr").join(self.gnu_triple())
        }
    }

    /// Returns the path of `strip` for the architecture's programs.
    pub(crate) fn strip(self) -> String {
        if self.is_native() {
            "strip".to_owned()
        } else {
            format!("{}-strip", self.gnu_triple())
        }
    }
}

/// Returns whether a 64-bit ELF file is linked dynamically: whether it has a program header of type `PT_INTERP`.
///
/// # Errors
///
/// If the file cannot be read or is not a 64-bit ELF file.
pub fn has_interpreter(path: &Path) -> Result<bool> {
    let elf = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    interpreter(&elf).with_context(|| path.display().to_string())
}

fn interpreter(elf: &[u8]) -> Result<bool> {
    const PT_INTERP: usize = 3;
    let number = |at: usize, size: usize| -> Result<usize> {
        let bytes = elf.get(at..at + size).context("a short ELF file")?;
        Ok(bytes
            .iter()
            .rev()
            .fold(0, |value, byte| value << 8 | usize::from(*byte)))
    };
    ensure!(
        elf.starts_with(b"\x7fELF\x02\x01"),
        "not a 64-bit little-endian ELF file"
    );
    let (start, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
    for index in 0..count {
        if number(start + index * size, 4)? == PT_INTERP {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn architectures_are_parsed_by_image_names() {
        for architecture in Architecture::ALL {
            assert_eq!(
                Architecture::parse(architecture.name()).unwrap(),
                architecture
            );
        }
        let error = Architecture::parse("x86_64").unwrap_err().to_string();
        assert!(error.contains("amd64 and arm64"), "{error}");
    }

    #[test]
    fn only_native_programs_run_without_an_emulator() {
        let native = Architecture::native().unwrap();
        for architecture in Architecture::ALL {
            assert_eq!(
                architecture.emulator_command().is_empty(),
                architecture == native,
                "{architecture:?}"
            );
        }
    }

    #[test]
    fn dynamic_programs_have_an_interpreter() {
        assert!(has_interpreter(&std::env::current_exe().unwrap()).unwrap());
        let text = tempfile::NamedTempFile::new().unwrap();
        fs::write(text.path(), "#!/bin/sh\n").unwrap();
        assert!(has_interpreter(text.path()).is_err());
    }
}
