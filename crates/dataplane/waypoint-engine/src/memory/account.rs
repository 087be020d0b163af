//! Hierarchical memory accounts: bytes charged to an account are also charged to the accounts that enclose it, and
//! released when the permit is dropped.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

/// Level of a memory account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum BudgetScope {
    /// Account of one connection, or of all connections of one caller.
    Connection,
    /// Account of one caller.
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

/// Memory account with a limit. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct MemoryAccount(Arc<AccountNode>);

#[derive(Debug)]
struct AccountNode {
    scope: BudgetScope,
    limit: usize,
    /// Part of the limit that only nested accounts with few charged bytes may use.
    reserve: usize,
    charged_bytes: AtomicUsize,
    parent: Option<MemoryAccount>,
}

impl MemoryAccount {
    /// Creates an outermost account. A quarter of its limit is reserved for nested accounts that hold less than a 64th
    /// of it, so that a few callers that exhaust their budgets leave room for all others.
    pub(crate) fn root(scope: BudgetScope, limit: usize) -> Self {
        Self::new(scope, limit, limit / 4, None)
    }

    /// Creates an account nested in this one.
    pub(crate) fn nested(&self, scope: BudgetScope, limit: usize) -> Self {
        Self::new(scope, limit, 0, Some(self.clone()))
    }

    fn new(scope: BudgetScope, limit: usize, reserve: usize, above: Option<Self>) -> Self {
        Self(Arc::new(AccountNode {
            scope,
            limit,
            reserve,
            charged_bytes: AtomicUsize::new(0),
            parent: above,
        }))
    }

    /// Charges bytes to the account. Dropping the returned permit releases them.
    ///
    /// # Errors
    /// When the limit of this account or of an enclosing one is reached.
    pub(crate) fn charge(&self, bytes: usize) -> Result<MemoryPermit, BudgetExhausted> {
        self.add_to_chain(bytes, 0)?;
        Ok(MemoryPermit {
            account: self.clone(),
            bytes,
        })
    }

    /// Whether both are clones of one account.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns the number of bytes that are currently charged.
    pub(crate) fn charged_bytes(&self) -> usize {
        self.0.charged_bytes.load(Relaxed)
    }

    /// Returns the limit of the account in bytes.
    pub(crate) fn limit(&self) -> usize {
        self.0.limit
    }

    /// Returns the number of bytes that may still be charged to this account.
    pub(crate) fn free_bytes(&self) -> usize {
        self.limit().saturating_sub(self.charged_bytes())
    }

    /// Returns the number of bytes that may still be charged to the outermost account.
    pub(crate) fn free_bytes_at_root(&self) -> usize {
        let above = self.0.parent.as_ref();
        above.map_or_else(|| self.free_bytes(), Self::free_bytes_at_root)
    }

    /// Whether more than half of the limit of this account or of an enclosing one is charged.
    pub(crate) fn is_mostly_charged(&self) -> bool {
        let is_charged = self.charged_bytes() > self.limit() / 2;
        let above = self.0.parent.as_ref();
        is_charged || above.is_some_and(Self::is_mostly_charged)
    }

    /// Returns the level of the account, this one or an enclosing one, of which more than five eighths are charged; `None`
    /// if there is none. The outermost account refuses charges at six eighths already, since it has a reserve.
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

    /// Charges bytes to this account and those that enclose it. `below` is the number of bytes charged to the nested
    /// account through which the charge arrives; it decides whether the charge may use the reserve.
    fn add_to_chain(&self, bytes: usize, below: usize) -> Result<(), BudgetExhausted> {
        let AccountNode {
            scope,
            limit,
            reserve,
            charged_bytes: held,
            parent: above,
        } = &*self.0;
        let may_use_all = below <= limit / 64;
        let limit = if may_use_all { *limit } else { limit - reserve };
        // Added first, so that two callers cannot both take the last bytes.
        let sum = held.fetch_add(bytes, Relaxed).saturating_add(bytes);
        let added = if sum > limit {
            Err(BudgetExhausted(*scope))
        } else {
            above
                .as_ref()
                .map_or(Ok(()), |above| above.add_to_chain(bytes, sum))
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
        self.account.add_to_chain(bytes, 0)?;
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

    /// Creates the accounts of a process (limit 6400 bytes), of two callers (1600 each), and of one connection of each
    /// caller (800).
    fn accounts() -> (MemoryAccount, [MemoryAccount; 2], [MemoryAccount; 2]) {
        let process = MemoryAccount::root(BudgetScope::Process, 6400);
        let callers = [(); 2].map(|()| process.nested(BudgetScope::Caller, 1600));
        let connections =
            [&callers[0], &callers[1]].map(|one| one.nested(BudgetScope::Connection, 800));
        (process, callers, connections)
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
    fn exhausted_budget_closest_to_the_account_is_named() {
        let (process, [caller, _], [connection, _]) = accounts();
        let one = connection.charge(800).unwrap();
        assert_eq!(
            connection.charge(1).unwrap_err(),
            BudgetExhausted(BudgetScope::Connection)
        );
        let other = caller.nested(BudgetScope::Connection, 1600);
        let two = other.charge(800).unwrap();
        assert_eq!(
            other.charge(1).unwrap_err(),
            BudgetExhausted(BudgetScope::Caller)
        );
        assert_eq!(
            [&process, &caller, &other].map(MemoryAccount::charged_bytes),
            [1600, 1600, 800]
        );
        drop(one);
        let mut three = other.charge(1).unwrap();
        assert!(three.grow(800).is_err());
        // The permit keeps its bytes, and none of the refused ones.
        assert_eq!(
            [&process, &caller].map(MemoryAccount::charged_bytes),
            [801, 801]
        );
        drop((two, three));
        assert_eq!(
            [&process, &caller].map(MemoryAccount::charged_bytes),
            [0, 0]
        );
    }

    #[test]
    fn last_quarter_is_reserved_for_callers_that_hold_little() {
        let process = MemoryAccount::root(BudgetScope::Process, 6400);
        let greedy: Vec<_> = (0..8)
            .map(|_| process.nested(BudgetScope::Caller, 1600))
            .collect();
        let mut held = Vec::new();
        for caller in &greedy {
            while let Ok(permit) = caller.charge(200) {
                held.push(permit);
            }
        }
        assert_eq!(process.charged_bytes(), 4800);
        assert_eq!(
            greedy[7].charge(200).unwrap_err(),
            BudgetExhausted(BudgetScope::Process)
        );
        let modest = process.nested(BudgetScope::Caller, 1600);
        let small = modest.charge(100).unwrap();
        assert!(modest.charge(100).is_err());
        drop((small, held));
        assert_eq!(process.charged_bytes(), 0);
    }

    #[test]
    fn concurrent_threads_never_exceed_the_limit() {
        let process = MemoryAccount::root(BudgetScope::Process, 6400);
        let caller = process.nested(BudgetScope::Caller, 1000);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for bytes in (1..400).cycle().take(20_000) {
                        if let Ok(permit) = caller.charge(bytes) {
                            assert!(permit.bytes() <= 1000);
                        }
                    }
                });
            }
        });
        assert_eq!((process.charged_bytes(), caller.charged_bytes()), (0, 0));
        assert!(caller.charge(1000).is_ok());
    }
}
