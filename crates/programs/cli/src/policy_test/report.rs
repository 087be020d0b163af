//! Report of a rehearsal, as text and as data.

use std::collections::BTreeMap;

use serde::Serialize;

use super::decision::CallDecision;
use crate::output::format_table;

/// Recorded calls with the same peers, operation and decision, as a row of the report.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CallRow {
    pub(crate) from: String,
    pub(crate) to: String,
    pub(crate) what: String,
    pub(crate) times: usize,
    /// Policies that decide; empty if the calls cannot be decided.
    pub(crate) by: String,
    pub(crate) why: String,
}

/// Differences between the decisions with the current and with the rehearsed policies.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Report {
    /// Calls that the rehearsed policies would refuse, and the current ones do not.
    pub(crate) refused: Vec<CallRow>,
    /// Calls that the current policies refuse, and the rehearsed ones would allow; with the policy that refuses them
    /// now.
    pub(crate) admitted: Vec<CallRow>,
    /// Calls about which the rehearsed policies cannot be evaluated, with the reason.
    pub(crate) undecided: Vec<CallRow>,
    /// Number of calls that both the current and the rehearsed policies refuse.
    pub(crate) refused_already: usize,
    /// Number of calls that the rehearsed policies allow, and the current ones do not refuse.
    pub(crate) allowed: usize,
    /// Notes on the rehearsed policies, and on sources that could not be read.
    pub(crate) notes: Vec<String>,
}

impl Report {
    /// Adds recorded calls by their decision with the current policies (`now`) and with the rehearsed ones (`then`).
    pub(super) fn add(&mut self, row: CallRow, now: CallDecision, then: CallDecision) {
        let row_with = |by: String, why: String| CallRow {
            by,
            why,
            ..row.clone()
        };
        match (now, then) {
            (_, CallDecision::Undecided(why)) => self.undecided.push(row_with(String::new(), why)),
            (CallDecision::Refused { .. }, CallDecision::Refused { .. }) => {
                self.refused_already += row.times
            }
            (CallDecision::Refused { by, why }, CallDecision::Allowed) => {
                self.admitted.push(row_with(by, why))
            }
            (_, CallDecision::Refused { by, why }) => self.refused.push(row_with(by, why)),
            (_, CallDecision::Allowed) => self.allowed += row.times,
        }
    }

    /// Merges equal rows, and adds up the numbers of their calls.
    pub(crate) fn count(&mut self) {
        for rows in [&mut self.refused, &mut self.admitted, &mut self.undecided] {
            let mut counted = BTreeMap::<_, usize>::new();
            for CallRow {
                from,
                to,
                what,
                times,
                by,
                why,
            } in rows.drain(..)
            {
                *counted.entry((from, to, what, by, why)).or_default() += times;
            }
            let row = |((from, to, what, by, why), times)| CallRow {
                from,
                to,
                what,
                times,
                by,
                why,
            };
            *rows = counted.into_iter().map(row).collect();
        }
    }

    /// Sorts the report's rows by their number of calls, most first.
    pub(crate) fn sort(&mut self) {
        for rows in [&mut self.refused, &mut self.admitted, &mut self.undecided] {
            rows.sort_by_key(|row| std::cmp::Reverse(row.times));
        }
    }

    /// Formats the report for display.
    pub(crate) fn format_report(&self) -> String {
        let times = |rows: &[CallRow]| rows.iter().map(|row| row.times).sum::<usize>();
        let mut text = String::new();
        for note in &self.notes {
            text.push_str(&format!("{note}\n"));
        }
        for (what, by, rows) in [
            ("would be refused", "BY", &self.refused),
            (
                "would be admitted, and are refused now",
                "NOW REFUSED BY",
                &self.admitted,
            ),
            ("cannot be decided", "", &self.undecided),
        ] {
            if rows.is_empty() {
                continue;
            }
            let rows_of = rows.iter().map(|row| {
                vec![
                    row.times.to_string(),
                    row.from.clone(),
                    row.to.clone(),
                    row.what.clone(),
                    row.by.clone(),
                    row.why.clone(),
                ]
            });
            let header = ["TIMES", "FROM", "TO", "WHAT", by, "WHY"];
            text.push_str(&format!(
                "{} {what}:\n{}\n\n",
                times(rows),
                format_table(&header, rows_of)
            ));
        }
        text.push_str(&format!(
            "{} refused, {} admitted, {} undecided, {} refused as now, {} allowed as now",
            times(&self.refused),
            times(&self.admitted),
            times(&self.undecided),
            self.refused_already,
            self.allowed
        ));
        text
    }
}
