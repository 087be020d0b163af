//! nftables over netlink: reads tables, and commits lists of changes as one transaction.
//!
//! The crate `ambit-netplan` defines the contents of the tables; this module encodes them.

mod decode;
mod encode;
mod foreign;
mod protocol;

use std::{collections::BTreeMap, io};

use ambit_netplan::nft::{Change, Set, SetMember, Table, TableChain};
use rustix::{io::Errno, net::netlink};

pub(crate) use foreign::ForeignChains;
pub(crate) use protocol::TableFamily;
use protocol::{GET_CHAIN, GET_ELEMENTS, GET_RULE, GET_SET, GET_TABLE, NFGENMSG_BYTES, UNSPEC};

use crate::netlink::{Attrs, Socket, attr, text};

/// Error of reading or changing nftables.
#[derive(Debug, thiserror::Error)]
pub enum NftError {
    /// The netlink socket could not be opened.
    #[error("cannot open a netfilter netlink socket")]
    Open(#[source] io::Error),
    /// A table could not be read from the kernel.
    #[error("cannot read nftables table {table}")]
    Read {
        /// Name of the table.
        table: String,
        /// Error that the kernel returned.
        #[source]
        source: io::Error,
    },
    /// The kernel rejected the transaction, which had no effect.
    #[error("the kernel refused the change of nftables table {table} at the step: {step}")]
    Refused {
        /// Name of the table.
        table: String,
        /// Change that failed, described by the difference that it repairs.
        step: String,
        /// Error that the kernel returned.
        #[source]
        source: io::Error,
    },
}

impl NftError {
    /// Whether the kernel lacks nftables or a feature that the rules need, so that another backend may work.
    ///
    /// ENOENT: an expression or chain type is missing; the other codes: the family, the protocol or an option is
    /// missing.
    pub fn is_unsupported(&self) -> bool {
        let unsupported = [
            Errno::NOENT,
            Errno::PROTONOSUPPORT,
            Errno::OPNOTSUPP,
            Errno::AFNOSUPPORT,
        ];
        self.errno()
            .is_some_and(|errno| unsupported.contains(&errno))
    }

    /// Whether another process changed the nftables rules since they were read, so that a retry may help.
    pub(crate) fn is_contention(&self) -> bool {
        let contention = [Errno::NOENT, Errno::EXIST, Errno::BUSY];
        self.errno()
            .is_some_and(|errno| contention.contains(&errno))
    }

    fn errno(&self) -> Option<Errno> {
        let (Self::Open(source) | Self::Read { source, .. } | Self::Refused { source, .. }) = self;
        Errno::from_io_error(source)
    }
}

/// Connection to nftables in the namespace of the thread that opened it.
#[derive(Debug)]
pub(crate) struct Nft {
    socket: Socket,
    family: TableFamily,
}

impl Nft {
    pub(crate) fn open() -> Result<Self, NftError> {
        Self::open_family(TableFamily::Inet)
    }

    pub(crate) fn open_family(family: TableFamily) -> Result<Self, NftError> {
        let socket = Socket::open(Some(netlink::NETFILTER)).map_err(NftError::Open)?;
        Ok(Self { socket, family })
    }

    /// Reads a table from the kernel; `None` if it does not exist.
    pub(crate) fn read(&mut self, table: &str) -> Result<Option<Table>, NftError> {
        self.read_table(table).map_err(|source| NftError::Read {
            table: table.to_owned(),
            source,
        })
    }

    fn read_table(&mut self, name: &str) -> io::Result<Option<Table>> {
        let mut exists = false;
        self.dump(GET_TABLE, self.family as u8, Attrs::new(), |found| {
            exists |= attr(found, 1).and_then(text) == Some(name);
        })?;
        if !exists {
            return Ok(None);
        }
        let mut table = Table {
            chains: self.read_chains(name)?,
            sets: BTreeMap::new(),
        };
        let filter = Attrs::new().text(1, name);
        self.dump(GET_RULE, self.family as u8, filter, |found| {
            if let Some((chain, rule)) = decode::rule(found, name)
                && let Some(chain) = table.chains.get_mut(&chain)
            {
                chain.rules.push(rule);
            }
        })?;
        table.sets = self.read_sets(name)?;
        Ok(Some(table))
    }

    fn read_chains(&mut self, table: &str) -> io::Result<BTreeMap<String, TableChain>> {
        let mut chains = BTreeMap::new();
        self.dump(GET_CHAIN, self.family as u8, Attrs::new(), |found| {
            chains.extend(decode::chain(found, table))
        })?;
        Ok(chains)
    }

    fn read_sets(&mut self, table: &str) -> io::Result<BTreeMap<String, Set>> {
        let mut sets = BTreeMap::new();
        let filter = Attrs::new().text(1, table);
        self.dump(GET_SET, self.family as u8, filter, |found| {
            sets.extend(decode::set(found, table))
        })?;
        for (name, set) in &mut sets {
            let which = Attrs::new().text(1, table).text(2, name);
            let members: &mut BTreeMap<SetMember, String> = &mut set.members;
            self.dump(GET_ELEMENTS, self.family as u8, which, |found| {
                members.extend(decode::members(found))
            })?;
        }
        Ok(sets)
    }

    /// Sums the packet counters of a chain's rules.
    pub(crate) fn read_counter(&mut self, table: &str, chain: &str) -> Result<u64, NftError> {
        let filter = Attrs::new().text(1, table).text(2, chain);
        let mut packets = 0_u64;
        let counted = self.dump(GET_RULE, self.family as u8, filter, |found| {
            packets = packets.saturating_add(decode::sum_counters(found, table, chain));
        });
        counted.map_err(|source| NftError::Read {
            table: table.to_owned(),
            source,
        })?;
        Ok(packets)
    }

    /// Returns the names of all chains of all tables and families, a cheap way to detect rules of other programs.
    pub(crate) fn all_chains(&mut self) -> Result<Vec<String>, NftError> {
        let mut names = Vec::new();
        self.dump(GET_CHAIN, UNSPEC, Attrs::new(), |found| {
            names.extend(attr(found, 3).and_then(text).map(str::to_owned));
        })
        .map_err(|source| NftError::Read {
            table: "(all)".into(),
            source,
        })?;
        Ok(names)
    }

    fn dump(
        &mut self,
        kind: u16,
        family: u8,
        filter: Attrs,
        mut each: impl FnMut(&[u8]),
    ) -> io::Result<()> {
        let body = filter.into_bytes();
        self.socket
            .dump(kind, &[&[family, 0, 0, 0], &body], |payload| {
                each(payload.get(NFGENMSG_BYTES..).unwrap_or_default());
            })
    }

    /// Commits the changes of a table in one transaction.
    pub(crate) fn commit(&mut self, table: &str, changes: &[Change]) -> Result<(), NftError> {
        if changes.is_empty() {
            return Ok(());
        }
        let refused = |step: usize, source| NftError::Refused {
            table: table.to_owned(),
            step: changes
                .get(step)
                .map_or_else(|| "commit".to_owned(), ToString::to_string),
            source,
        };
        let (bytes, last) = encode::batch(self.family, table, changes);
        self.socket
            .send(&bytes)
            .map_err(|source| refused(changes.len(), source))?;
        self.socket.wait_for_ack(last).map_err(|(seq, source)| {
            refused(
                usize::try_from(seq).unwrap_or_default().wrapping_sub(1),
                source,
            )
        })
    }
}
