//! `ambit check --from istio`: which objects of an Istio mesh work with Ambit as they are, which work differently, and
//! which have no effect.

use std::{collections::BTreeMap, path::PathBuf, process::ExitCode};

use serde::Serialize;

use super::args::CheckArgs;
use crate::{
    CliError, ErrorKind,
    cluster::block_on,
    istio::{self, Effect, Mesh, Outcome},
    output::{self, escape_unprintable, format_table},
};

/// Exit code if an object works differently with Ambit than with Istio, or has no effect.
const DIFFERENCES_EXIT_CODE: u8 = 5;

/// Effects that an Istio mesh's objects would have with Ambit, as the command prints them.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ConversionReport {
    effects: Vec<Effect>,
    summary: Summary,
    /// Objects and kinds that could not be read, with the reason.
    unreadable: Vec<String>,
    /// Kinds whose CRDs exist, that Ambit does not read, and that have no objects.
    unused_kinds: Vec<String>,
}

/// Number of objects by the most severe outcome of each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
struct Summary {
    works: usize,
    changes: usize,
    lapses: usize,
}

/// Prints the effects of the objects, and returns the exit code of the report.
pub(super) fn run(args: &CheckArgs) -> Result<ExitCode, CliError> {
    let mut mesh = match args.subjects.as_slice() {
        [] => block_on(async {
            let cluster = args.target.connect().await?;
            istio::read_cluster(&cluster, &args.target.mesh_namespace).await
        })?,
        files => {
            let files: Vec<PathBuf> = files.iter().map(PathBuf::from).collect();
            istio::read_files(&files)?
        }
    };
    mesh.config.root_namespace = args.target.mesh_namespace.as_str().into();
    if mesh.objects.is_empty() && mesh.unreadable.is_empty() {
        return Err(CliError::new(ErrorKind::NotFound, "there are no objects"));
    }
    let report = report(mesh);
    output::print_formatted(args.output, &report, || report.to_text())?;
    Ok(ExitCode::from(report.exit_code()))
}

fn report(mesh: Mesh) -> ConversionReport {
    let effects = istio::effects(&mesh);
    let summary = Summary::count_outcomes(&effects);
    ConversionReport {
        effects,
        summary,
        unreadable: mesh.unreadable,
        unused_kinds: mesh.unused_kinds,
    }
}

impl Summary {
    fn count_outcomes(effects: &[Effect]) -> Self {
        let mut worst: BTreeMap<&str, Outcome> = BTreeMap::new();
        for Effect {
            object, outcome, ..
        } in effects
        {
            let of_object = worst.entry(object).or_insert(*outcome);
            *of_object = (*of_object).min(*outcome);
        }
        let count = |outcome| worst.values().filter(|one| **one == outcome).count();
        Self {
            works: count(Outcome::Works),
            changes: count(Outcome::Changes),
            lapses: count(Outcome::Lapses),
        }
    }
}

impl ConversionReport {
    /// Returns the exit code: 0 if all objects work unchanged, 5 if one changes or lapses, 1 if something could not be
    /// read.
    fn exit_code(&self) -> u8 {
        let Summary {
            changes, lapses, ..
        } = self.summary;
        match (self.unreadable.is_empty(), changes + lapses) {
            (false, _) => 1,
            (true, 0) => 0,
            (true, _) => DIFFERENCES_EXIT_CODE,
        }
    }

    fn to_text(&self) -> String {
        let mut text = String::new();
        for (outcome, title) in [
            (Outcome::Lapses, "LAPSES: has no effect with Ambit"),
            (Outcome::Changes, "CHANGES: works, but differently"),
            (Outcome::Works, "WORKS as it is"),
        ] {
            let of = || self.effects.iter().filter(|one| one.outcome == outcome);
            if of().next().is_none() {
                continue;
            }
            let rows = match outcome {
                Outcome::Works => format_table(
                    &["OBJECT"],
                    of().map(|one| vec![escape_unprintable(&one.object)]),
                ),
                _ => format_table(
                    &["OBJECT", "FIELD", "EFFECT", "WHAT TO DO"],
                    of().map(table_row),
                ),
            };
            text.push_str(&format!("{title}\n{rows}\n\n"));
        }
        for (title, list) in [
            ("NOT READ", &self.unreadable),
            ("NOT FOLLOWED, and without objects", &self.unused_kinds),
        ] {
            if !list.is_empty() {
                let lines: Vec<_> = list.iter().map(|line| escape_unprintable(line)).collect();
                text.push_str(&format!("{title}\n{}\n\n", lines.join("\n")));
            }
        }
        let Summary {
            works,
            changes,
            lapses,
        } = self.summary;
        let objects = works + changes + lapses;
        text.push_str(&format!(
            "{objects} objects: {works} work as they are, {changes} change, {lapses} lapse"
        ));
        text
    }
}

fn table_row(effect: &Effect) -> Vec<String> {
    let cell = |text: &str| match text {
        "" | "." => "-".to_owned(),
        text => escape_unprintable(text),
    };
    vec![
        cell(&effect.object),
        cell(&effect.field),
        cell(&effect.effect),
        cell(&effect.advice),
    ]
}

#[cfg(test)]
mod tests;
