//! Fair shares of a worker's CPU time: a caller whose tasks are always ready gets a quantum, and then all other ready
//! tasks run first. Without it, one caller's hundred tunnels would each be polled before another caller's single one.
//!
//! A share counts the time that the polls of its tasks take. When the quantum is used up, its tasks wait until the
//! worker has polled all other ready tasks; if no other task is ready, the next quantum begins at once. No CPU time is
//! left unused.

use std::{
    collections::{HashMap, VecDeque},
    net::IpAddr,
    pin::Pin,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use ambit_model::Identity;
use parking_lot::Mutex;

/// CPU time that the tasks of one caller may use before all other ready tasks of the worker run.
const CPU_QUANTUM: Duration = Duration::from_millis(1);
/// Maximum number of a caller's waiting tasks that are woken per quantum. Woken tasks that do not fit into the quantum
/// wait again.
const MAX_WOKEN_TASKS: usize = 16;

/// Key of a CPU share: identity and address of the caller.
type Caller = (Option<Identity>, IpAddr);

/// Live shares of one worker by caller. A share lives as long as one of its tasks.
type ShareTable = HashMap<Caller, Weak<ShareEntry>>;

/// Table of the callers' CPU shares on one worker.
#[derive(Debug, Default)]
pub(crate) struct FairShares(Arc<Mutex<ShareTable>>);

/// CPU share of one caller. Clones are the same share.
#[derive(Clone, Debug)]
pub(crate) struct FairShare(Arc<ShareEntry>);

/// CPU share of one caller, removed from the worker's table on drop.
#[derive(Debug)]
struct ShareEntry {
    caller: Caller,
    usage: Mutex<CpuUsage>,
    table: Weak<Mutex<ShareTable>>,
}

/// CPU time that a caller has used in the current quantum, and its tasks that wait for the next one. Quanta have no
/// timer: a pass of the worker's task queue separates them.
#[derive(Debug, Default)]
struct CpuUsage {
    used_time: Duration,
    /// Tasks in the order in which they began to wait, each once.
    waiting: VecDeque<Arc<Waiter>>,
    /// Whether a task is scheduled to start the next quantum after the other ready tasks of the worker.
    is_renewal_scheduled: bool,
}

/// Queue entry of a task that waits for the next quantum; one per task, however often the task is polled meanwhile.
#[derive(Debug)]
struct Waiter {
    waker: Mutex<Waker>,
    is_queued: AtomicBool,
}

impl Waiter {
    fn new(waker: &Waker) -> Arc<Self> {
        Arc::new(Self {
            waker: Mutex::new(waker.clone()),
            is_queued: AtomicBool::new(false),
        })
    }

    /// Whether the task was dropped: then only the queue refers to its waiter.
    fn is_task_dropped(waiter: &Arc<Self>) -> bool {
        Arc::strong_count(waiter) == 1
    }

    fn wake(&self) {
        self.is_queued.store(false, Relaxed);
        self.waker.lock().wake_by_ref();
    }
}

impl CpuUsage {
    fn has_remaining_time(&self) -> bool {
        self.used_time < CPU_QUANTUM
    }

    /// Enqueues a task for the next quantum. Returns true if the calling code must schedule the start of that quantum.
    fn wait(&mut self, waiter: &Arc<Waiter>) -> bool {
        if !waiter.is_queued.swap(true, Relaxed) {
            self.waiting.push_back(waiter.clone());
        }
        !std::mem::replace(&mut self.is_renewal_scheduled, true)
    }

    /// Starts a quantum, and returns the waiting tasks to wake; `None` if no task waits.
    fn start_quantum(&mut self) -> Option<Vec<Arc<Waiter>>> {
        self.used_time = Duration::ZERO;
        let mut woken = Vec::new();
        while woken.len() < MAX_WOKEN_TASKS
            && let Some(waiter) = self.waiting.pop_front()
        {
            if !Waiter::is_task_dropped(&waiter) {
                woken.push(waiter);
            }
        }
        self.is_renewal_scheduled = !woken.is_empty();
        self.is_renewal_scheduled.then_some(woken)
    }
}

impl FairShares {
    /// Returns the share of a caller, which all tasks of that caller on this worker use.
    pub(crate) fn for_caller(&self, identity: Option<&Identity>, ip: IpAddr) -> FairShare {
        let caller = (identity.cloned(), ip);
        let mut table = self.0.lock();
        if let Some(known) = table.get(&caller).and_then(Weak::upgrade) {
            return FairShare(known);
        }
        let new = Arc::new(ShareEntry {
            caller: caller.clone(),
            usage: Mutex::default(),
            table: Arc::downgrade(&self.0),
        });
        table.insert(caller, Arc::downgrade(&new));
        FairShare(new)
    }
}

impl Drop for ShareEntry {
    fn drop(&mut self) {
        let Some(table) = self.table.upgrade() else {
            return;
        };
        let mut table = table.lock();
        // The table may already have a new share of the caller.
        if table
            .get(&self.caller)
            .is_some_and(|one| one.strong_count() == 0)
        {
            table.remove(&self.caller);
        }
    }
}

impl FairShare {
    /// Wraps a task so that its polls are charged to the share.
    pub(crate) fn run<F: Future>(&self, task: F) -> SharedTask<F> {
        TaskShare::Fixed(self.clone()).run(task)
    }

    /// Starts the next quantum after each pass of the worker's queue, until no task waits.
    async fn run_quanta(self) {
        loop {
            // Resumes after all ready tasks, and those that the next poll of sockets and timers makes ready.
            tokio::task::yield_now().await;
            let Some(woken) = self.0.usage.lock().start_quantum() else {
                return;
            };
            woken.iter().for_each(|waiter| waiter.wake());
        }
    }
}

/// CPU share of the caller that currently uses a pooled connection, charged for the connection's tasks. Clones share
/// it.
#[derive(Clone, Debug, Default)]
pub(crate) struct CurrentShare(Arc<Mutex<Option<FairShare>>>);

impl CurrentShare {
    /// Charges the connection's tasks to another caller's share; `None` leaves them unlimited.
    pub(crate) fn set(&self, share: Option<&FairShare>) {
        *self.0.lock() = share.cloned();
    }
}

/// CPU share to which the polls of a task are charged.
#[derive(Clone, Debug)]
pub(crate) enum TaskShare {
    /// Share of one caller for the task's whole life.
    Fixed(FairShare),
    /// Share of the caller that uses the task's connection at the time of the poll.
    Current(CurrentShare),
}

impl TaskShare {
    /// Wraps a task so that its polls are charged to the share.
    pub(crate) fn run<F: Future>(&self, task: F) -> SharedTask<F> {
        SharedTask {
            task: Box::pin(task),
            share: self.clone(),
            waiter: None,
        }
    }
}

/// Task whose polls are charged to a CPU share.
#[derive(Debug)]
pub(crate) struct SharedTask<F> {
    task: Pin<Box<F>>,
    share: TaskShare,
    /// Queue entry of the task, and the share in which it waited last.
    waiter: Option<(Weak<ShareEntry>, Arc<Waiter>)>,
}

/// Returns the task's queue entry if the task waited last in this share, and otherwise creates one.
fn get_or_insert_waiter<'a>(
    known: &'a mut Option<(Weak<ShareEntry>, Arc<Waiter>)>,
    share: &FairShare,
    waker: &Waker,
) -> &'a Arc<Waiter> {
    let own = Arc::downgrade(&share.0);
    let known = match known {
        Some((last, _)) if !last.ptr_eq(&own) => known.insert((own, Waiter::new(waker))),
        known => known.get_or_insert_with(|| (own, Waiter::new(waker))),
    };
    known.1.waker.lock().clone_from(waker);
    &known.1
}

impl<F: Future> Future for SharedTask<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.get_mut();
        let current;
        let share = match &this.share {
            TaskShare::Fixed(share) => share,
            TaskShare::Current(of) => {
                let share = of.0.lock().clone();
                let Some(share) = share else {
                    return this.task.as_mut().poll(cx);
                };
                current = share;
                &current
            }
        };
        let mut usage = share.0.usage.lock();
        if !usage.has_remaining_time() {
            let begins = usage.wait(get_or_insert_waiter(&mut this.waiter, share, cx.waker()));
            drop(usage);
            if begins {
                ambit_rt::spawn("fair share", share.clone().run_quanta());
            }
            return Poll::Pending;
        }
        drop(usage);
        let began = Instant::now();
        let polled = this.task.as_mut().poll(cx);
        share.0.usage.lock().used_time += began.elapsed();
        polled
    }
}

#[cfg(test)]
mod tests {
    use std::{
        cell::Cell,
        sync::atomic::{AtomicUsize, Ordering::Relaxed},
    };

    use super::*;

    const IP: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn identity(account: &str) -> Option<Identity> {
        Some(Identity::new("td", "ns", account))
    }

    #[test]
    fn tasks_wait_for_the_next_quantum_in_order() {
        let mut usage = CpuUsage::default();
        assert!(usage.has_remaining_time());
        usage.used_time = CPU_QUANTUM;
        assert!(!usage.has_remaining_time());
        let waiters: Vec<_> = (0..=MAX_WOKEN_TASKS)
            .map(|_| Waiter::new(Waker::noop()))
            .collect();
        let begins: Vec<_> = waiters.iter().map(|waiter| usage.wait(waiter)).collect();
        assert_eq!(begins.iter().filter(|begins| **begins).count(), 1);
        assert!(begins[0]);
        // A task that is polled several times has one place in the queue.
        assert!(waiters.iter().all(|waiter| !usage.wait(waiter)));
        assert_eq!(usage.waiting.len(), waiters.len());

        let woken = usage.start_quantum().unwrap();
        assert!(usage.has_remaining_time());
        assert_eq!(woken.len(), MAX_WOKEN_TASKS);
        woken.iter().for_each(|waiter| waiter.wake());
        assert!(!usage.wait(&waiters[0]));
        assert_eq!(usage.start_quantum().unwrap().len(), 2);
        assert!(usage.start_quantum().is_none());
        assert!(usage.wait(&Waiter::new(Waker::noop())));
    }

    #[test]
    fn dropped_tasks_use_no_wakeups() {
        let mut usage = CpuUsage::default();
        for _ in 0..MAX_WOKEN_TASKS {
            usage.wait(&Waiter::new(Waker::noop()));
        }
        let last = Waiter::new(Waker::noop());
        usage.wait(&last);
        let woken = usage.start_quantum().unwrap();
        assert!(woken.len() == 1 && Arc::ptr_eq(&woken[0], &last));
        assert!(usage.waiting.is_empty());
    }

    #[test]
    fn all_tasks_of_a_caller_have_the_same_share() {
        let shares = FairShares::default();
        let one = shares.for_caller(identity("a").as_ref(), IP);
        let same = shares.for_caller(identity("a").as_ref(), IP);
        assert!(Arc::ptr_eq(&one.0, &same.0));
        let other = shares.for_caller(identity("b").as_ref(), IP);
        assert!(!Arc::ptr_eq(&one.0, &other.0));
        assert_eq!(shares.0.lock().len(), 2);
        drop((one, other));
        assert_eq!(shares.0.lock().len(), 1);
        drop(same);
        assert!(shares.0.lock().is_empty());
    }

    /// Uses one quantum of CPU time in each of `turns` polls.
    async fn use_quanta(turns: usize) {
        for _ in 0..turns {
            let began = Instant::now();
            while began.elapsed() < CPU_QUANTUM {}
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn single_task_runs_between_quanta_of_a_busy_caller() {
        let shares = FairShares::default();
        let heavy = shares.for_caller(identity("heavy").as_ref(), IP);
        let light = shares.for_caller(identity("light").as_ref(), IP);
        let turns = Arc::new(AtomicUsize::new(0));
        for _ in 0..20 {
            let turns = turns.clone();
            ambit_rt::spawn(
                "heavy",
                heavy.run(async move {
                    for _ in 0..5 {
                        use_quanta(1).await;
                        turns.fetch_add(1, Relaxed);
                    }
                }),
            );
        }
        tokio::task::yield_now().await;
        let most = Cell::new(0);
        let waits = light.run(async {
            for _ in 0..20 {
                let before = turns.load(Relaxed);
                tokio::task::yield_now().await;
                most.set(most.get().max(turns.load(Relaxed) - before));
            }
        });
        waits.await;
        // Two passes of the queue at most, rather than twenty tasks.
        assert!(most.get() <= 3, "{}", most.get());
        assert!(turns.load(Relaxed) > 0);
    }

    #[tokio::test(start_paused = true)]
    async fn single_caller_is_never_delayed_by_timers() {
        let share = FairShares::default().for_caller(None, IP);
        let tasks = (0..10).map(|_| ambit_rt::spawn("busy", share.run(use_quanta(5))));
        let began = tokio::time::Instant::now();
        for task in tasks.collect::<Vec<_>>() {
            task.await.unwrap();
        }
        // The clock of timers only advances when nothing is ready.
        assert_eq!(began.elapsed(), Duration::ZERO);
    }
}
