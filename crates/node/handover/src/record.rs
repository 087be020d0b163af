//! Items that a supervisor holds for its worker, and the records by which worker and supervisors
//! exchange them. Knows nothing of sockets: `F` is the type of a descriptor.
//!
//! An item is sent as one [`Record::Item`], followed by one [`Record::DescriptorMismatch`] for each of its
//! descriptors; it counts once all have arrived. Supervisors forward its metadata unread. Items
//! never contain secrets; those are in files that a worker keeps for the next one, and files are
//! sent only to the standby of the same pod. A reader skips records of unknown kinds, so that
//! versions may differ.

use std::{collections::BTreeMap, sync::Arc};

/// Maximum stored items, more than a node has pods, so that a faulty peer cannot exhaust memory.
const MAX_ITEMS: usize = 8192;
/// Maximum number of descriptors that one item may have.
const MAX_DESCRIPTORS: u16 = 4096;

/// Maximum length of an encoded record, in bytes.
pub const MAX_RECORD_BYTES: usize = 2048;

/// Message between a supervisor and its worker, another supervisor or a holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// Adds or replaces an item, a named set of descriptors with metadata; the descriptors follow in records of their
    /// own.
    Item {
        /// Name of the item.
        key: Arc<str>,
        /// Metadata for the next worker, opaque to supervisors.
        about: Arc<[u8]>,
        /// Number of [`Record::DescriptorMismatch`] records that follow.
        descriptors: u16,
    },
    /// Carries the next descriptor of the item that was sent last.
    Descriptor,
    /// Replaces the metadata of the item called `key`.
    UpdateMetadata {
        /// Name of the item.
        key: Arc<str>,
        /// New metadata for the next worker.
        about: Arc<[u8]>,
    },
    /// Removes the item called `key` from the receiver's store, which closes the item's descriptors.
    RemoveItem {
        /// Name of the item.
        key: Arc<str>,
    },
    /// Tells a worker whether to accept connections. The first such record on a link also marks the end of the stored
    /// items.
    Accept(AcceptCommand),
    /// Reports that the worker has read its configuration and runs.
    WorkerStarted,
    /// Reports that the sender accepts connections on the sockets of all items.
    Accepting,
    /// Stores or replaces the file of this number for the next worker; its descriptor is attached.
    StoreFile(u8),
}

/// Command to a worker about accepting connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcceptCommand {
    /// The worker accepts connections at once.
    Now,
    /// The worker accepts connections once it is ready; until then its predecessor accepts them.
    OnceReady,
    /// The worker accepts no connections, since its successor does.
    Paused,
}

/// Error of a record that is malformed, or not valid at this point.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// Record shorter than its fields require.
    #[error("the record is cut short")]
    Truncated,
    /// Item name that is not UTF-8.
    #[error("the item's name is not text")]
    InvalidName(#[from] std::str::Utf8Error),
    /// Record with a descriptor that it must not have, or without the one that it needs.
    #[error("a record came with a descriptor too many or too few")]
    DescriptorMismatch,
    /// Descriptor that was sent without a preceding item.
    #[error("a descriptor came that belongs to no item")]
    UnexpectedDescriptor,
    /// More items, or more descriptors of one item, than the limits allow.
    #[error("more than {MAX_ITEMS} items, or {MAX_DESCRIPTORS} descriptors of one")]
    LimitExceeded,
}

impl Record {
    /// Encodes the record for the socket.
    pub fn encode(&self) -> Vec<u8> {
        let item = |tag: u8, key: &str, rest: &[&[u8]]| {
            let length = u16::try_from(key.len()).unwrap_or(u16::MAX);
            let mut bytes = vec![tag];
            bytes.extend(length.to_be_bytes());
            bytes.extend(key.as_bytes());
            for part in rest {
                bytes.extend(*part);
            }
            bytes
        };
        match self {
            Self::Item {
                key,
                about,
                descriptors,
            } => item(b'I', key, &[&descriptors.to_be_bytes(), about]),
            Self::Descriptor => vec![b'D'],
            Self::UpdateMetadata { key, about } => item(b'W', key, &[about]),
            Self::RemoveItem { key } => item(b'R', key, &[]),
            Self::Accept(AcceptCommand::Now) => vec![b'A', b'n'],
            Self::Accept(AcceptCommand::OnceReady) => vec![b'A', b'r'],
            Self::Accept(AcceptCommand::Paused) => vec![b'A', b'p'],
            Self::WorkerStarted => vec![b'B'],
            Self::Accepting => vec![b'C'],
            Self::StoreFile(number) => vec![b'F', *number],
        }
    }

    /// Decodes a record; `None` for a kind that this version does not know.
    ///
    /// # Errors
    /// When the bytes are not a record.
    pub fn decode(bytes: &[u8]) -> Result<Option<Self>, RecordError> {
        fn decode_key(bytes: &[u8]) -> Result<(Arc<str>, &[u8]), RecordError> {
            let (length, rest) = bytes.split_first_chunk().ok_or(RecordError::Truncated)?;
            let length = usize::from(u16::from_be_bytes(*length));
            let (key, rest) = rest
                .split_at_checked(length)
                .ok_or(RecordError::Truncated)?;
            Ok((std::str::from_utf8(key)?.into(), rest))
        }
        let (tag, rest) = bytes.split_first().ok_or(RecordError::Truncated)?;
        Ok(Some(match tag {
            b'I' => {
                let (key, rest) = decode_key(rest)?;
                let (descriptors, about) =
                    rest.split_first_chunk().ok_or(RecordError::Truncated)?;
                Self::Item {
                    key,
                    about: about.into(),
                    descriptors: u16::from_be_bytes(*descriptors),
                }
            }
            b'D' => Self::Descriptor,
            b'W' => {
                let (key, about) = decode_key(rest)?;
                Self::UpdateMetadata {
                    key,
                    about: about.into(),
                }
            }
            b'R' => Self::RemoveItem {
                key: decode_key(rest)?.0,
            },
            b'A' => match rest.first().ok_or(RecordError::Truncated)? {
                b'n' => Self::Accept(AcceptCommand::Now),
                b'r' => Self::Accept(AcceptCommand::OnceReady),
                b'p' => Self::Accept(AcceptCommand::Paused),
                _ => return Ok(None),
            },
            b'B' => Self::WorkerStarted,
            b'C' => Self::Accepting,
            b'F' => Self::StoreFile(*rest.first().ok_or(RecordError::Truncated)?),
            _ => return Ok(None),
        }))
    }
}

/// Item without its name: descriptors that a supervisor holds for its worker, with metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandoverItem<F> {
    /// Metadata of the item for the next worker, opaque to supervisors.
    pub metadata: Arc<[u8]>,
    /// Descriptors in the order of sending.
    pub descriptors: Vec<F>,
}

/// Items and files that a process stores for a worker.
#[derive(Debug)]
pub struct Handover<F> {
    items: BTreeMap<Arc<str>, HandoverItem<F>>,
    incomplete_item: Option<IncompleteItem<F>>,
    files: BTreeMap<u8, F>,
}

/// Item of which not all descriptors have arrived.
#[derive(Debug)]
struct IncompleteItem<F> {
    key: Arc<str>,
    item: HandoverItem<F>,
    missing_descriptors: u16,
}

impl<F> Default for Handover<F> {
    fn default() -> Self {
        Self {
            items: BTreeMap::new(),
            incomplete_item: None,
            files: BTreeMap::new(),
        }
    }
}

impl<F> Handover<F> {
    /// Applies a record that adds, changes or removes an item or a file; ignores other records. Returns the name of the
    /// item that the record completes, if it does.
    ///
    /// # Errors
    /// When the record is unexpected here; stored items stay.
    pub fn apply(
        &mut self,
        record: &Record,
        fd: Option<F>,
    ) -> Result<Option<Arc<str>>, RecordError> {
        match (record, fd) {
            (
                Record::Item {
                    key,
                    about,
                    descriptors,
                },
                None,
            ) => {
                if self.items.len() >= MAX_ITEMS || *descriptors > MAX_DESCRIPTORS {
                    return Err(RecordError::LimitExceeded);
                }
                self.incomplete_item = Some(IncompleteItem {
                    key: key.clone(),
                    item: HandoverItem {
                        metadata: about.clone(),
                        descriptors: Vec::new(),
                    },
                    missing_descriptors: *descriptors,
                });
                Ok(self.complete_item())
            }
            (Record::Descriptor, Some(descriptor)) => {
                let coming = self
                    .incomplete_item
                    .as_mut()
                    .ok_or(RecordError::UnexpectedDescriptor)?;
                coming.item.descriptors.push(descriptor);
                coming.missing_descriptors = coming.missing_descriptors.saturating_sub(1);
                Ok(self.complete_item())
            }
            (Record::StoreFile(number), Some(file)) => {
                self.files.insert(*number, file);
                Ok(None)
            }
            (Record::Descriptor | Record::StoreFile(_), None) | (_, Some(_)) => {
                Err(RecordError::DescriptorMismatch)
            }
            (Record::UpdateMetadata { key, about }, None) => {
                if let Some(item) = self.items.get_mut(key) {
                    item.metadata = about.clone();
                }
                Ok(None)
            }
            (Record::RemoveItem { key }, None) => {
                self.items.remove(key);
                Ok(None)
            }
            (Record::Accept(_) | Record::WorkerStarted | Record::Accepting, None) => Ok(None),
        }
    }

    fn complete_item(&mut self) -> Option<Arc<str>> {
        let IncompleteItem { key, item, .. } = self
            .incomplete_item
            .take_if(|coming| coming.missing_descriptors == 0)?;
        self.items.insert(key.clone(), item);
        Some(key)
    }

    /// Drops the item whose descriptors have not all arrived, since its sender is gone.
    pub fn discard_incomplete(&mut self) {
        self.incomplete_item = None;
    }

    /// Removes and returns the file stored under `number`.
    pub fn take_file(&mut self, number: u8) -> Option<F> {
        self.files.remove(&number)
    }

    /// Drops all stored files, but no items.
    pub fn forget_files(&mut self) {
        self.files.clear();
    }

    /// Drops all stored items and files.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Returns the descriptors of all items.
    pub fn descriptors(&self) -> impl Iterator<Item = &F> {
        self.items.values().flat_map(|item| &item.descriptors)
    }

    /// Number of stored items.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether no item is stored.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Returns the items with their names.
    pub fn into_items(self) -> impl Iterator<Item = (Arc<str>, HandoverItem<F>)> {
        self.items.into_iter()
    }
}

impl<F: Clone> Handover<F> {
    /// Returns the stored files as records that add them to the store of another process.
    fn files(&self) -> impl Iterator<Item = (Record, Option<F>)> {
        let files = self.files.iter();
        files.map(|(number, file)| (Record::StoreFile(*number), Some(file.clone())))
    }

    /// Returns all items and files as records that add them to the store of another process.
    pub fn all_records(&self) -> impl Iterator<Item = (Record, Option<F>)> {
        self.records().into_iter().chain(self.files())
    }

    /// Returns all items, without files, as records that add them to the store of another process.
    pub fn records(&self) -> Vec<(Record, Option<F>)> {
        let items = self.items.iter();
        items.flat_map(|(key, item)| item.records(key)).collect()
    }

    /// Returns the records that add the item `key` to the store of another process; none if it is not stored.
    pub fn records_of(&self, key: &str) -> Vec<(Record, Option<F>)> {
        let item = self.items.get_key_value(key);
        item.into_iter()
            .flat_map(|(key, item)| item.records(key))
            .collect()
    }
}

impl<F: Clone> HandoverItem<F> {
    fn records(&self, key: &Arc<str>) -> impl Iterator<Item = (Record, Option<F>)> {
        let head = Record::Item {
            key: key.clone(),
            about: self.metadata.clone(),
            descriptors: u16::try_from(self.descriptors.len()).unwrap_or(u16::MAX),
        };
        let descriptors = self.descriptors.iter();
        let descriptors =
            descriptors.map(|descriptor| (Record::Descriptor, Some(descriptor.clone())));
        std::iter::once((head, None)).chain(descriptors)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item_record(key: &str, descriptors: u16) -> Record {
        Record::Item {
            key: key.into(),
            about: Arc::from(key.as_bytes()),
            descriptors,
        }
    }

    fn release_record(key: &str) -> Record {
        Record::RemoveItem { key: key.into() }
    }

    #[test]
    fn records_decode_as_they_were_encoded() {
        let records = [
            item_record("a", 6),
            Record::Descriptor,
            Record::UpdateMetadata {
                key: "a".into(),
                about: Arc::from(&b"b"[..]),
            },
            release_record("a"),
            Record::Accept(AcceptCommand::Now),
            Record::Accept(AcceptCommand::OnceReady),
            Record::Accept(AcceptCommand::Paused),
            Record::WorkerStarted,
            Record::Accepting,
            Record::StoreFile(1),
        ];
        for record in records {
            let bytes = record.encode();
            assert!(bytes.len() <= MAX_RECORD_BYTES);
            assert_eq!(Record::decode(&bytes).unwrap(), Some(record.clone()));
            for end in 0..bytes.len() {
                // Truncated records are errors or other records, never a panic.
                let _any = Record::decode(&bytes[..end]);
            }
        }
        assert_eq!(Record::decode(b"?later").unwrap(), None);
        assert!(matches!(Record::decode(b""), Err(RecordError::Truncated)));
        assert!(matches!(
            Record::decode(b"R\0\x09abc"),
            Err(RecordError::Truncated)
        ));
        assert!(matches!(
            Record::decode(b"R\0\x01\xff"),
            Err(RecordError::InvalidName(_))
        ));
    }

    #[test]
    fn item_counts_once_all_its_descriptors_have_arrived() {
        let mut held = Handover::default();
        held.apply(&item_record("a", 2), None).unwrap();
        held.apply(&Record::Descriptor, Some(2)).unwrap();
        assert!(held.is_empty());
        held.apply(&Record::Descriptor, Some(3)).unwrap();
        assert_eq!(held.len(), 1);
        held.apply(&item_record("b", 0), None).unwrap();
        let mut copy = Handover::default();
        for (record, fd) in held.records() {
            copy.apply(&record, fd).unwrap();
        }
        let items: Vec<_> = copy.into_items().collect();
        assert_eq!(items, held.into_items().collect::<Vec<_>>());
        assert_eq!(items[0].1.descriptors, [2, 3]);
    }

    #[test]
    fn incomplete_item_is_dropped_and_the_previous_one_stays() {
        let mut held = Handover::default();
        held.apply(&item_record("a", 1), None).unwrap();
        held.apply(&Record::Descriptor, Some(2)).unwrap();
        held.apply(&item_record("a", 2), None).unwrap();
        held.apply(&Record::Descriptor, Some(4)).unwrap();
        held.discard_incomplete();
        assert!(matches!(
            held.apply(&Record::Descriptor, Some(5)),
            Err(RecordError::UnexpectedDescriptor)
        ));
        let items: Vec<_> = held.into_items().collect();
        assert_eq!(&items[0].1.descriptors[..], &[2][..]);
    }

    #[test]
    fn descriptions_change_and_released_items_go() {
        let mut held = Handover::<u32>::default();
        held.apply(&item_record("a", 0), None).unwrap();
        let about = Record::UpdateMetadata {
            key: "a".into(),
            about: Arc::from(&b"renamed"[..]),
        };
        held.apply(&about, None).unwrap();
        assert_eq!(&held.items["a"].metadata[..], b"renamed");
        held.apply(&release_record("a"), None).unwrap();
        held.apply(&about, None).unwrap();
        assert!(held.is_empty());
    }

    #[test]
    fn descriptors_must_accompany_their_records() {
        let mut held = Handover::default();
        for (record, fd) in [
            (item_record("a", 0), Some(1)),
            (Record::Descriptor, None),
            (Record::WorkerStarted, Some(1)),
            (Record::StoreFile(1), None),
            (release_record("a"), Some(1)),
        ] {
            assert!(matches!(
                held.apply(&record, fd),
                Err(RecordError::DescriptorMismatch)
            ));
        }
        let many = item_record("a", MAX_DESCRIPTORS + 1);
        assert!(matches!(
            held.apply(&many, None),
            Err(RecordError::LimitExceeded)
        ));
    }
}
