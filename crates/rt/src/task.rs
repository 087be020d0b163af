//! Named tasks. A task that panics says so under its name; the others go on.

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

/// Spawns a task on the current runtime. `name` appears in the log if the task panics.
///
/// Dropping the handle lets the task run on; see [`spawn_abortable`] for the opposite.
pub fn spawn<F>(name: &'static str, future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    tokio::spawn(watched(name, future))
}

/// As [`spawn`], on the current `LocalSet` (or local runtime), for futures that stay on one thread.
pub fn spawn_local<F>(name: &'static str, future: F) -> JoinHandle<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    tokio::task::spawn_local(watched(name, future))
}

/// Runs a blocking closure on the runtime's blocking threads.
pub fn spawn_blocking<F, R>(name: &'static str, work: F) -> JoinHandle<R>
where
    F: FnOnce() -> R + Send + 'static,
    R: Send + 'static,
{
    tokio::task::spawn_blocking(move || {
        let _report = ReportPanic(name);
        work()
    })
}

/// As [`spawn`], for a task that must not outlive the value returned.
pub fn spawn_abortable<F>(name: &'static str, future: F) -> AbortOnDrop<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    AbortOnDrop(spawn(name, future))
}

/// A task that is aborted when this is dropped.
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

/// A runtime that runs everything on the calling thread: the main thread's, or one worker's shard.
pub fn current_thread() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

struct ReportPanic(&'static str);

impl Drop for ReportPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            tracing::error!(task = self.0, "task panicked");
        }
    }
}

pin_project_lite::pin_project! {
    /// A future under a name. Written out, since an `async fn` would keep the future twice: as its
    /// argument and as what it awaits, which doubles the memory of every task.
    struct Watched<F> {
        name: &'static str,
        #[pin]
        future: F,
    }
}

impl<F: Future> Future for Watched<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let _report = ReportPanic(this.name);
        this.future.poll(cx)
    }
}

fn watched<F: Future>(name: &'static str, future: F) -> Watched<F> {
    Watched { name, future }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_stays_in_its_task() {
        let bad = spawn("bad", async { panic!("on purpose") });
        let good = spawn("good", async { 7 });
        assert!(bad.await.unwrap_err().is_panic());
        assert_eq!(good.await.unwrap(), 7);
    }

    #[tokio::test]
    async fn an_abortable_task_ends_with_its_handle() {
        let (alive, mut ended) = tokio::sync::mpsc::channel::<()>(1);
        let task = spawn_abortable("waits", async move {
            std::future::pending::<()>().await;
            drop(alive);
        });
        drop(task);
        assert_eq!(ended.recv().await, None);
    }
}
