//! Spawns named tasks. A panic is logged with its task's name; the other tasks continue.

use std::{
    future::Future,
    io,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::{
    runtime::{Builder, Runtime},
    task::JoinHandle,
};

use crate::panics;

/// Spawns a task on the current runtime. `name` appears in the log if the task panics.
///
/// Dropping the handle lets the task run on; a task of [`spawn_abortable`] is aborted instead.
pub fn spawn<F>(name: &'static str, future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    tokio::spawn(named(name, future))
}

/// Spawns an essential task like [`spawn`]; a panic in it ends the process.
pub fn spawn_essential<F>(name: &'static str, future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    tokio::spawn(end_process_on_panic(name, future))
}

/// Wraps a future so that its panic ends the process.
pub fn end_process_on_panic<F: Future>(
    name: &'static str,
    future: F,
) -> impl Future<Output = F::Output> {
    NamedFuture {
        name,
        kind: Essential,
        future,
    }
}

/// Spawns a task like [`spawn`] on the current `LocalSet` or local runtime.
pub fn spawn_local<F>(name: &'static str, future: F) -> JoinHandle<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    tokio::task::spawn_local(named(name, future))
}

/// Runs a blocking closure on the runtime's blocking threads.
pub fn spawn_blocking<F, R>(name: &'static str, work: F) -> JoinHandle<R>
where
    F: FnOnce() -> R + Send + 'static,
    R: Send + 'static,
{
    tokio::task::spawn_blocking(move || {
        let _report = PanicReporter {
            name,
            essential: false,
        };
        work()
    })
}

/// Spawns a task like [`spawn`] that is aborted when the returned value is dropped.
pub fn spawn_abortable<F>(name: &'static str, future: F) -> AbortOnDrop<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    AbortOnDrop(spawn(name, future))
}

/// Task that is aborted on drop.
#[derive(Debug)]
pub struct AbortOnDrop<T>(JoinHandle<T>);

impl<T> AbortOnDrop<T> {
    /// Whether the task has ended.
    pub fn is_finished(&self) -> bool {
        self.0.is_finished()
    }
}

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Builds a tokio runtime that runs on the calling thread: the main thread, or a worker.
pub fn current_thread_runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

struct PanicReporter {
    name: &'static str,
    essential: bool,
}

impl Drop for PanicReporter {
    fn drop(&mut self) {
        if std::thread::panicking() {
            tracing::error!(task = self.name, "task panicked");
            if self.essential {
                panics::end_process();
            }
        }
    }
}

pin_project_lite::pin_project! {
    /// Future with a name. An `async fn` would store the future twice, as its argument and as the awaited one, which
    /// doubles the memory of every task. The kind needs none.
    struct NamedFuture<F, K> {
        name: &'static str,
        kind: K,
        #[pin]
        future: F,
    }
}

/// Kind of a task, which determines what a panic in it ends.
trait TaskKind {
    /// Whether a panic ends the process.
    const IS_ESSENTIAL: bool;
}

/// Kind of the tasks without which the process cannot go on.
struct Essential;

/// Kind of the tasks whose panic ends only themselves.
struct Expendable;

impl TaskKind for Essential {
    const IS_ESSENTIAL: bool = true;
}

impl TaskKind for Expendable {
    const IS_ESSENTIAL: bool = false;
}

impl<F: Future, K: TaskKind> Future for NamedFuture<F, K> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let _report = PanicReporter {
            name: this.name,
            essential: K::IS_ESSENTIAL,
        };
        this.future.poll(cx)
    }
}

fn named<F: Future>(name: &'static str, future: F) -> NamedFuture<F, Expendable> {
    NamedFuture {
        name,
        kind: Expendable,
        future,
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::within;

    use super::*;

    #[tokio::test]
    async fn a_panic_stays_in_its_task() {
        within(async {
            let bad = spawn("bad", async { panic!("on purpose") });
            let good = spawn("good", async { 7 });
            assert!(bad.await.unwrap_err().is_panic());
            assert_eq!(good.await.unwrap(), 7);
        })
        .await;
    }

    #[tokio::test]
    async fn panics_in_essential_tasks_exit_with_their_location() {
        const CHILD: &str = "AMBIT_TEST_PANICS";
        if std::env::var_os(CHILD).is_some() {
            let _logs = crate::logging::init(&crate::Env::from_process()).unwrap();
            crate::panics::install_hook(crate::panics::PanicScope::Task);
            assert!(spawn("any", async { panic!("one") }).await.is_err());
            let fetched = spawn_essential("needed", async { panic!("two") });
            fetched.await.unwrap();
        }
        let this = std::thread::current().name().unwrap().to_owned();
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &this, "--nocapture", "--test-threads=1"])
            .env(CHILD, "yes")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&child.stdout);
        assert!(!child.status.success(), "{text}");
        for line in ["panicked: one", "panicked: two", file!(), "\"needed\""] {
            assert!(text.contains(line), "{line:?} in {text}");
        }
    }

    #[tokio::test]
    async fn an_abortable_task_ends_with_its_handle() {
        within(async {
            let (alive, mut ended) = tokio::sync::mpsc::channel::<()>(1);
            let task = spawn_abortable("waits", async move {
                std::future::pending::<()>().await;
                drop(alive);
            });
            drop(task);
            assert_eq!(ended.recv().await, None);
        })
        .await;
    }
}
