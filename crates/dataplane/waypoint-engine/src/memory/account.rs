//! Hierarchical memory accounts: bytes charged to an account are also charged to the accounts that enclose it, and
//! released when the permit is dropped.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

/// Level of a memory account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum BudgetScope {
    /// Account of the requests of one connection, or of all connections of one caller.
    Connection,
    /// Account of the requests of one caller.
    Caller,
    /// Account of the whole process.
    Process,
}

impl BudgetScope {
    /// Returns the name of the level in metrics and access logs.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Connection => "connection",
            Self::Caller => "caller",
            Self::Process => "process",
        }
    }
}

/// Error of a charge that exceeds the limit of a memory account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the memory budget of the {} is used up", .0.name())]
pub(crate) struct BudgetExhausted(pub(crate) BudgetScope);

/// Limit of a memory account.
#[derive(Clone, Copy, Debug)]
enum Limit {
    /// Fixed number of bytes.
    Bytes(usize),
    /// The free bytes of three quarters of the enclosing account's limit, so that the limit shrinks as sibling accounts
    /// charge more. `n` accounts that grow together to their limits hold one part in `n + 1` each, and leave one part free.
    /// (Dynamic queue length thresholds: Choudhury and Hahne, IEEE/ACM Transactions on Networking 6(2), 1998, with a
    /// factor of 1.) The limit is never below a 64th of the enclosing one, for which the last quarter is reserved:
    /// accounts that reach their limits one after the other halve the free bytes each time.
    FreeBytesOfParent,
    /// The limit of the enclosing account, divided by this number.
    PartOfParent(usize),
}

/// Memory account with a limit. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct MemoryAccount(Arc<AccountNode>);

#[derive(Debug)]
struct AccountNode {
    scope: BudgetScope,
    limit: Limit,
    charged_bytes: AtomicUsize,
    parent: Option<MemoryAccount>,
}

impl MemoryAccount {
    /// Creates an outermost account with a limit in bytes.
    pub(crate) fn root(scope: BudgetScope, limit: usize) -> Self {
        Self::new(scope, Limit::Bytes(limit), None)
    }

    /// Creates an account nested in this one, which may use as many bytes as this one has free.
    pub(crate) fn nested_in_free(&self, scope: BudgetScope) -> Self {
        Self::new(scope, Limit::FreeBytesOfParent, Some(self.clone()))
    }

    /// Creates an account nested in this one, with half of its limit.
    pub(crate) fn nested_in_half(&self, scope: BudgetScope) -> Self {
        Self::new(scope, Limit::PartOfParent(2), Some(self.clone()))
    }

    /// Creates an account nested in this one, with an eighth of its limit.
    pub(crate) fn nested_in_eighth(&self, scope: BudgetScope) -> Self {
        Self::new(scope, Limit::PartOfParent(8), Some(self.clone()))
    }

    fn new(scope: BudgetScope, limit: Limit, parent: Option<Self>) -> Self {
        Self(Arc::new(AccountNode {
            scope,
            limit,
            charged_bytes: AtomicUsize::new(0),
            parent,
        }))
    }

    /// Charges bytes to the account. Dropping the returned permit releases them.
    ///
    /// # Errors
    /// When the limit of this account or of an enclosing one is reached.
    pub(crate) fn charge(&self, bytes: usize) -> Result<MemoryPermit, BudgetExhausted> {
        self.add_to_chain(bytes)?;
        Ok(MemoryPermit {
            account: self.clone(),
            bytes,
        })
    }

    /// Returns a permit that covers no bytes yet.
    pub(crate) fn empty_permit(&self) -> MemoryPermit {
        MemoryPermit {
            account: self.clone(),
            bytes: 0,
        }
    }

    /// Checks that this account and those that enclose it have room for more bytes, without charging them.
    ///
    /// # Errors
    /// When one of them has not.
    pub(crate) fn check_room(&self, bytes: usize) -> Result<(), BudgetExhausted> {
        if bytes > self.free_bytes() {
            return Err(BudgetExhausted(self.0.scope));
        }
        let above = self.0.parent.as_ref();
        above.map_or(Ok(()), |above| above.check_room(bytes))
    }

    /// Whether both are clones of one account.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns the number of bytes that are currently charged.
    pub(crate) fn charged_bytes(&self) -> usize {
        self.0.charged_bytes.load(Relaxed)
    }

    /// Returns the current limit of the account in bytes.
    pub(crate) fn limit(&self) -> usize {
        let parent = self.0.parent.as_ref();
        match self.0.limit {
            Limit::Bytes(bytes) => bytes,
            Limit::FreeBytesOfParent => parent.map_or(0, |parent| {
                let all = parent.limit();
                let free = (all - all / 4).saturating_sub(parent.charged_bytes());
                free.max(all / 64)
            }),
            Limit::PartOfParent(divisor) => parent.map_or(0, Self::limit) / divisor.max(1),
        }
    }

    /// Returns the number of bytes that may still be charged to this account.
    pub(crate) fn free_bytes(&self) -> usize {
        self.limit().saturating_sub(self.charged_bytes())
    }

    /// Whether more than half of the limit of this account or of an enclosing one is charged.
    pub(crate) fn is_mostly_charged(&self) -> bool {
        let is_charged = self.charged_bytes() > self.limit() / 2;
        let above = self.0.parent.as_ref();
        is_charged || above.is_some_and(Self::is_mostly_charged)
    }

    /// Returns the level of the account, this one or an enclosing one, of which more than five eighths are charged; `None`
    /// if there is none. The outermost account has only three quarters for accounts that hold much.
    pub(crate) fn scarce_level(&self) -> Option<BudgetScope> {
        if self.charged_bytes() > self.limit() / 8 * 5 {
            return Some(self.0.scope);
        }
        self.0.parent.as_ref()?.scarce_level()
    }

    /// Returns the number of references to this account: clones, nested accounts, and permits.
    pub(crate) fn reference_count(&self) -> usize {
        Arc::strong_count(&self.0)
    }

    /// Charges bytes to this account and those that enclose it.
    fn add_to_chain(&self, bytes: usize) -> Result<(), BudgetExhausted> {
        let AccountNode {
            scope,
            charged_bytes: held,
            parent: above,
            ..
        } = &*self.0;
        let limit = self.limit();
        // Added first, so that two callers cannot both take the last bytes.
        let sum = held.fetch_add(bytes, Relaxed).saturating_add(bytes);
        let added = if sum > limit {
            Err(BudgetExhausted(*scope))
        } else {
            above
                .as_ref()
                .map_or(Ok(()), |above| above.add_to_chain(bytes))
        };
        if added.is_err() {
            held.fetch_sub(bytes, Relaxed);
        }
        added
    }

    fn subtract(&self, bytes: usize) {
        self.0.charged_bytes.fetch_sub(bytes, Relaxed);
        if let Some(above) = &self.0.parent {
            above.subtract(bytes);
        }
    }
}

/// Permit for bytes charged to a memory account, which are released on drop.
#[derive(Debug)]
pub(crate) struct MemoryPermit {
    account: MemoryAccount,
    bytes: usize,
}

impl MemoryPermit {
    /// Charges more bytes to the permit.
    ///
    /// # Errors
    /// When the account has no room; the permit stays unchanged.
    pub(crate) fn grow(&mut self, bytes: usize) -> Result<(), BudgetExhausted> {
        self.account.add_to_chain(bytes)?;
        self.bytes += bytes;
        Ok(())
    }

    /// Returns the account that the permit is charged to.
    pub(crate) fn account(&self) -> &MemoryAccount {
        &self.account
    }

    /// Returns the number of bytes that the permit covers.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for MemoryPermit {
    fn drop(&mut self) {
        self.account.subtract(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates the accounts of a process (limit 6400 bytes), of two callers, and of one connection of each caller.
    fn accounts() -> (MemoryAccount, [MemoryAccount; 2], [MemoryAccount; 2]) {
        let process = MemoryAccount::root(BudgetScope::Process, 6400);
        let callers = [(); 2].map(|()| process.nested_in_free(BudgetScope::Caller));
        let connections =
            [&callers[0], &callers[1]].map(|one| one.nested_in_half(BudgetScope::Connection));
        (process, callers, connections)
    }

    /// Charges 100 bytes again and again until the account refuses; returns the permits and the level that refused.
    fn exhaust(account: &MemoryAccount) -> (Vec<MemoryPermit>, BudgetScope) {
        let mut permits = Vec::new();
        loop {
            match account.charge(100) {
                Ok(permit) => permits.push(permit),
                Err(BudgetExhausted(scope)) => return (permits, scope),
            }
        }
    }

    #[test]
    fn bytes_count_at_every_level_until_the_permit_is_dropped() {
        let (process, callers, [connection, other]) = accounts();
        let mut permit = connection.charge(300).unwrap();
        permit.grow(200).unwrap();
        let beside = other.charge(100).unwrap();
        let held =
            || [&process, &callers[0], &callers[1], &connection].map(MemoryAccount::charged_bytes);
        assert_eq!(held(), [600, 500, 100, 500]);
        assert_eq!(permit.bytes(), 500);
        drop(permit);
        assert_eq!(held(), [100, 0, 100, 0]);
        drop(beside);
        assert_eq!(held(), [0; 4]);
    }

    #[test]
    fn part_of_an_account_is_charged_to_it_as_well() {
        let (process, [caller, _], _) = accounts();
        let part = caller.nested_in_eighth(BudgetScope::Connection);
        let mut permit = part.empty_permit();
        // The limit shrinks as the bytes are charged.
        permit.grow(533).unwrap();
        assert!(permit.grow(1).is_err());
        assert_eq!(
            [&process, &caller].map(MemoryAccount::charged_bytes),
            [533; 2]
        );
        let _caller = caller.charge(800).unwrap();
        assert!(permit.grow(1).is_err());
        drop(permit);
        assert_eq!(part.limit(), (4800 - 800) / 8);
    }

    #[test]
    fn exhausted_budget_closest_to_the_account_is_named() {
        let (process, [caller, _], [connection, _]) = accounts();
        // Half of what it leaves of 4800 bytes.
        let (one, scope) = exhaust(&connection);
        assert_eq!(scope, BudgetScope::Connection);
        assert_eq!(connection.charged_bytes(), 1600);
        // Both together have as much as they leave.
        let other = caller.nested_in_half(BudgetScope::Connection);
        let (mut two, scope) = exhaust(&other);
        assert_eq!(scope, BudgetScope::Caller);
        let held = || [&process, &caller, &connection].map(MemoryAccount::charged_bytes);
        assert_eq!(held(), [2400, 2400, 1600]);
        // The permit keeps its bytes, and none of the refused ones.
        assert!(two[0].grow(1).is_err());
        assert_eq!(two[0].bytes(), 100);
        assert_eq!(held(), [2400, 2400, 1600]);
        drop(one);
        two[0].grow(1).unwrap();
        assert_eq!(held(), [801, 801, 0]);
        drop(two);
        assert_eq!(held(), [0; 3]);
    }

    #[test]
    fn callers_that_take_all_they_may_leave_as_much_to_the_next_one() {
        for count in [1, 2, 7, 31] {
            let process = MemoryAccount::root(BudgetScope::Process, 6400);
            let greedy: Vec<_> = (0..count)
                .map(|_| process.nested_in_free(BudgetScope::Caller))
                .collect();
            let mut held = Vec::new();
            // In turns, since the first of them may have more until others come.
            loop {
                let before = held.len();
                held.extend(greedy.iter().filter_map(|caller| caller.charge(1).ok()));
                if held.len() == before {
                    break;
                }
            }
            let share = 4800 / (count + 1);
            for caller in &greedy {
                assert!(caller.charged_bytes().abs_diff(share) <= 1);
            }
            let next = process.nested_in_free(BudgetScope::Caller);
            assert!(next.limit().abs_diff(share) <= count);
            drop(held);
            assert_eq!(process.charged_bytes(), 0);
        }
    }

    #[test]
    fn last_quarter_is_reserved_for_callers_that_hold_little() {
        let process = MemoryAccount::root(BudgetScope::Process, 6400);
        // One after the other, so that each leaves half as much as the one before.
        let greedy: Vec<_> = (0..10)
            .map(|_| exhaust(&process.nested_in_free(BudgetScope::Caller)).0)
            .collect();
        assert!((4700..=5300).contains(&process.charged_bytes()));
        let modest: Vec<_> = (0..11)
            .map(|_| process.nested_in_free(BudgetScope::Caller).charge(100))
            .collect();
        assert!(modest.iter().all(Result::is_ok));
        drop((greedy, modest));
        assert_eq!(process.charged_bytes(), 0);
    }

    #[test]
    fn what_one_caller_holds_shrinks_the_limit_of_others() {
        let process = MemoryAccount::root(BudgetScope::Process, 6400);
        let [first, second] = [(); 2].map(|()| process.nested_in_free(BudgetScope::Caller));
        let _first = first.charge(2400).unwrap();
        assert_eq!([first.limit(), second.limit()], [2400, 2400]);
        let permit = second.charge(1200).unwrap();
        assert_eq!([first.limit(), second.limit()], [1200, 1200]);
        // The first keeps what it holds.
        assert_eq!(first.free_bytes(), 0);
        assert!(first.charge(1).is_err());
        drop(permit);
        assert_eq!(second.limit(), 2400);
    }

    #[test]
    fn concurrent_threads_never_exceed_the_limit() {
        let process = MemoryAccount::root(BudgetScope::Process, 1000);
        let callers = [(); 4].map(|()| process.nested_in_free(BudgetScope::Caller));
        let held = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for caller in &callers {
                scope.spawn(|| {
                    for bytes in (1..400).cycle().take(20_000) {
                        if let Ok(permit) = caller.charge(bytes) {
                            assert!(held.fetch_add(bytes, Relaxed) + bytes <= 1000);
                            held.fetch_sub(bytes, Relaxed);
                            drop(permit);
                        }
                    }
                });
            }
        });
        assert_eq!(process.charged_bytes(), 0);
        assert!(callers.iter().all(|caller| caller.charged_bytes() == 0));
        assert!(callers[0].charge(750).is_ok());
        assert!(callers[0].charge(751).is_err());
    }
}
