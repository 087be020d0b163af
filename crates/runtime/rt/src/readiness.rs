//! Readiness of the process: it is ready when no readiness task is pending.

use std::{
    borrow::Cow,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::http::{Request, Response, method_not_allowed, not_found, text};

/// HTTP path that kubelets and load balancers probe.
pub const READY_PATH: &str = "/healthz/ready";

/// Set of pending readiness tasks. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Readiness(Arc<Mutex<Vec<ReadinessTask>>>);

#[derive(Debug)]
struct ReadinessTask {
    name: Cow<'static, str>,
    is_pending: bool,
}

/// Readiness of one part of the process. Dropping it does not change the state, so that a failed part stays pending.
#[derive(Debug)]
pub struct ReadyTask {
    tasks: Readiness,
    index: usize,
}

impl Readiness {
    /// Creates a set without pending readiness tasks.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a pending task. The names of pending tasks appear in responses to probes, in the order added.
    pub fn add_pending_task(&self, name: impl Into<Cow<'static, str>>) -> ReadyTask {
        let mut tasks = self.lock();
        tasks.push(ReadinessTask {
            name: name.into(),
            is_pending: true,
        });
        ReadyTask {
            tasks: self.clone(),
            index: tasks.len() - 1,
        }
    }

    /// Returns whether no readiness task is pending.
    pub fn is_ready(&self) -> bool {
        self.lock().iter().all(|task| !task.is_pending)
    }

    /// Returns the names of pending tasks.
    pub fn pending_names(&self) -> Vec<String> {
        self.lock()
            .iter()
            .filter(|task| task.is_pending)
            .map(|task| task.name.to_string())
            .collect()
    }

    /// Responds to a readiness probe: 200 `ready`, or 500 naming pending tasks; 404 for other paths.
    pub fn respond(&self, request: &Request) -> Response {
        if request.uri().path() != READY_PATH {
            return not_found();
        }
        if request.method() != ::http::Method::GET {
            return method_not_allowed("GET");
        }
        let pending = self.pending_names();
        if pending.is_empty() {
            text(200, "ready\n")
        } else {
            text(500, format!("not ready, pending: {}\n", pending.join(", ")))
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<ReadinessTask>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ReadyTask {
    /// Marks the task as ready.
    pub fn ready(&self) {
        self.set(true);
    }

    /// Marks the task as pending again.
    pub fn not_ready(&self) {
        self.set(false);
    }

    /// Sets the task to ready or pending.
    pub fn set(&self, ready: bool) {
        let mut tasks = self.tasks.lock();
        if let Some(task) = tasks.get_mut(self.index)
            && task.is_pending == ready
        {
            task.is_pending = !ready;
            tracing::info!(task = %task.name, ready, "readiness");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::testing::{body_text, get};

    #[test]
    fn ready_only_when_nothing_is_pending() {
        let readiness = Readiness::new();
        assert_eq!(readiness.respond(&get("/healthz/ready")).status(), 200);
        let state = readiness.add_pending_task("state manager");
        let proxy = readiness.add_pending_task("proxy");
        let answer = readiness.respond(&get("/healthz/ready"));
        assert_eq!(answer.status(), 500);
        assert_eq!(
            body_text(answer),
            "not ready, pending: state manager, proxy\n"
        );
        state.ready();
        proxy.ready();
        assert_eq!(
            body_text(readiness.respond(&get("/healthz/ready"))),
            "ready\n"
        );
    }

    #[test]
    fn a_task_may_become_pending_again() {
        let readiness = Readiness::new();
        let zds = readiness.add_pending_task("workload proxy manager");
        zds.ready();
        assert!(readiness.is_ready());
        zds.not_ready();
        assert_eq!(readiness.pending_names(), ["workload proxy manager"]);
    }

    #[test]
    fn a_task_that_was_dropped_unready_stays_pending() {
        let readiness = Readiness::new();
        drop(readiness.add_pending_task("dns proxy"));
        assert!(!readiness.is_ready());
    }

    #[test]
    fn only_the_probe_path_answers() {
        assert_eq!(Readiness::new().respond(&get("/")).status(), 404);
    }
}
