//! Continuous series of new connections, to detect refused ones.

use std::{
    net::SocketAddr,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
};

use crate::{EchoConnection, Mesh, is_closed, wait_until};

/// Connections from `shop/client` to `shop/server`, opened one after the other until stopped.
#[derive(Debug)]
pub struct ConnectionAttempts<'a> {
    mesh: &'a Mesh,
    server: SocketAddr,
    stop: AtomicBool,
    succeeded: AtomicU32,
    failures: Mutex<Vec<String>>,
}

impl<'a> ConnectionAttempts<'a> {
    /// Creates the series of connections without opening one.
    pub fn new(mesh: &'a Mesh) -> Self {
        Self {
            mesh,
            server: SocketAddr::new(mesh.ip("shop/server"), 9000),
            stop: AtomicBool::new(false),
            succeeded: AtomicU32::new(0),
            failures: Mutex::default(),
        }
    }

    /// Opens another connection of the series.
    pub fn dial(&self) -> std::io::Result<EchoConnection> {
        self.mesh.dial("shop/client", self.server)
    }

    /// Opens connections until stopped. With `refused_only`, an established connection may break.
    pub fn run(&self, refused_only: bool) {
        while !self.stop.load(Ordering::Relaxed) {
            let result = match self.dial() {
                Err(error) => Err(format!("not opened: {error}")),
                Ok(mut connection) => match connection.exchange_line("hello") {
                    // Counts neither as a failure nor as a success.
                    Err(error) if refused_only && is_closed(&error) => continue,
                    result => result.map_err(|error| format!("broken: {error}")),
                },
            };
            match result {
                Err(failed) => self.failures.lock().unwrap().push(failed),
                Ok(()) => drop(self.succeeded.fetch_add(1, Ordering::Relaxed)),
            }
        }
    }

    /// Opens connections while `work` runs; stops even if `work` panics.
    pub fn run_during<T>(&self, refused_only: bool, work: impl FnOnce() -> T) -> T {
        struct Stop<'a>(&'a AtomicBool);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        std::thread::scope(|scope| {
            let _stop = Stop(&self.stop);
            scope.spawn(|| self.run(refused_only));
            work()
        })
    }

    /// Stops [`Self::run`] in another thread.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Waits until `more` additional connections have succeeded.
    pub fn wait_for_additional(&self, more: u32) {
        let from = self.succeeded.load(Ordering::Relaxed);
        wait_until("connections go on being opened", || {
            self.succeeded.load(Ordering::Relaxed) >= from + more
                || !self.failures.lock().unwrap().is_empty()
        });
    }

    /// Asserts that connections were opened, and none failed.
    #[track_caller]
    pub fn assert_no_failures(&self) {
        let failures = self.failures.lock().unwrap();
        let good = self.succeeded.load(Ordering::Relaxed);
        assert!(failures.is_empty(), "{good} went well, but: {failures:?}");
        assert!(good > 20, "only {good} connections were opened");
    }
}
