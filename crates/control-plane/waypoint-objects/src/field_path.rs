//! Paths of fields in an object, and errors in them.

use std::fmt;

/// One step of a path: a member of a map, or an element of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
enum PathStep {
    Member(String),
    Element(usize),
}

/// Path of a field in an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FieldPath(Vec<PathStep>);

/// Error in a field of an object: its path such as `spec.ports[0]`, or `.` for the object itself, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FieldError {
    pub(crate) path: String,
    pub(crate) reason: String,
}

impl FieldPath {
    pub(crate) fn join_member(&self, name: &str) -> Self {
        self.join_step(PathStep::Member(name.to_owned()))
    }

    pub(crate) fn join_element(&self, index: usize) -> Self {
        self.join_step(PathStep::Element(index))
    }

    fn join_step(&self, step: PathStep) -> Self {
        let mut steps = self.0.clone();
        steps.push(step);
        Self(steps)
    }

    /// Returns the name of the map member that the path ends with; `None` for a list element and for the object itself.
    pub(crate) fn last_member(&self) -> Option<&str> {
        match self.0.last()? {
            PathStep::Member(name) => Some(name),
            PathStep::Element(_) => None,
        }
    }

    /// Returns whether the path contains a member of this name.
    pub(crate) fn is_below(&self, name: &str) -> bool {
        let is_it = |step: &PathStep| matches!(step, PathStep::Member(member) if member == name);
        self.0.iter().any(is_it)
    }

    pub(crate) fn error(&self, why: impl Into<String>) -> FieldError {
        FieldError {
            path: self.to_string(),
            reason: why.into(),
        }
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str(".");
        }
        for (index, step) in self.0.iter().enumerate() {
            match step {
                PathStep::Member(name) if index == 0 => write!(f, "{name}")?,
                PathStep::Member(name) => write!(f, ".{name}")?,
                PathStep::Element(number) => write!(f, "[{number}]")?,
            }
        }
        Ok(())
    }
}
