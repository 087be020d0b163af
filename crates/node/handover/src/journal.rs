//! Append-only file of key-value entries without a name, which outlives this process because the supervisor holds its
//! descriptor. The last entry of each key counts; the caller defines the contents.
//!
//! Entries are only appended, so that a killed process leaves at most the last one incomplete. When
//! too many entries are obsolete, the current ones are copied into a new file. A journal that
//! cannot be written is emptied: partial contents would be wrong.

use std::{
    collections::HashMap,
    fs::File,
    io::{self, BufReader, BufWriter, Read, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::FileExt,
    },
};

use rustix::fs::{MemfdFlags, memfd_create};
use zeroize::Zeroizing;

use crate::Supervisor;

/// File size in bytes below which the journal is not compacted.
const MIN_COMPACTION_BYTES: u64 = 4 << 20;
/// Size of one write, in bytes.
const WRITE_BUFFER_BYTES: usize = 64 << 10;
/// Maximum length of an entry in bytes; a longer one means that the file is corrupt.
const MAX_ENTRY_BYTES: u64 = 16 << 20;

/// Identity of a journal: the number under which the supervisor holds its file, its name and its storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalId {
    /// Number of the journal's file at the supervisor, unique in the program; the next worker finds the file by it.
    pub number: u8,
    /// Name of the journal in log messages.
    pub name: &'static str,
    /// Storage of the journal's file.
    pub backing: JournalStorage,
}

/// Storage of a file without a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JournalStorage {
    /// File in the directory for temporary files.
    Disk,
    /// File in memory alone (`memfd_create`), for secrets.
    Memory,
}

/// Key-value entry of a journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Type of the entry, defined by the caller.
    pub tag: u8,
    /// Key of the entry; a later entry with the same key replaces it.
    pub key: Vec<u8>,
    /// Value of the entry; an empty one marks the key as removed.
    pub value: Zeroizing<Vec<u8>>,
}

/// Append-only key-value file without a name, which outlives the process because the supervisor holds its descriptor.
#[derive(Debug)]
pub struct Journal {
    purpose: JournalId,
    supervisor: Supervisor,
    /// File of the journal; `None` after a failed write.
    file: Option<File>,
    write_buffer: Zeroizing<Vec<u8>>,
    file_bytes: u64,
    /// File size in bytes at which the journal is compacted: current entries are copied to a new file.
    compaction_bytes: u64,
}

impl Journal {
    /// Opens the journal's file `held`, which the supervisor kept from the previous worker, or creates a file and
    /// stores it at the supervisor.
    ///
    /// # Errors
    /// When no file can be created.
    pub fn open(
        purpose: JournalId,
        held: Option<OwnedFd>,
        supervisor: &Supervisor,
    ) -> io::Result<Self> {
        let file = match held {
            Some(held) => File::from(held),
            None => create_file(purpose.backing)?,
        };
        let is_new = file.metadata()?.len() == 0;
        // Truncates an entry that the previous process did not complete.
        let size = JournalEntries::new(&file)?
            .last()
            .map_or(0, |(_, end, _)| end);
        file.set_len(size)?;
        if is_new {
            supervisor.store_file(purpose.number, &file);
        }
        Ok(Self {
            purpose,
            supervisor: supervisor.clone(),
            file: Some(file),
            write_buffer: Zeroizing::default(),
            file_bytes: size,
            compaction_bytes: MIN_COMPACTION_BYTES.max(size * 2),
        })
    }

    /// Returns all entries, oldest first.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn entries(&self) -> io::Result<impl Iterator<Item = Entry> + use<>> {
        let entries = self.file.as_ref().map(JournalEntries::new).transpose()?;
        Ok(entries.into_iter().flatten().map(|(_, _, entry)| entry))
    }

    /// Appends an entry to the write buffer, which [`Self::flush`] writes to the file.
    pub fn add(&mut self, tag: u8, key: &[u8], value: &[u8]) {
        if self.file.is_none() {
            return;
        }
        match encode_header(tag, key, value) {
            Some(head) => {
                for part in [&head[..], key, value] {
                    self.write_buffer.extend_from_slice(part);
                }
            }
            None => self.disable_after_error(&io::ErrorKind::FileTooLarge.into()),
        }
        if self.write_buffer.len() >= WRITE_BUFFER_BYTES {
            self.flush();
        }
    }

    /// Writes buffered entries to the file.
    pub fn flush(&mut self) {
        let pending = std::mem::take(&mut self.write_buffer);
        let Some(file) = &self.file else { return };
        let mut written = file.write_all_at(&pending, self.file_bytes);
        self.file_bytes += pending.len() as u64;
        if written.is_ok() && self.file_bytes > self.compaction_bytes {
            written = self.compact();
        }
        if let Err(error) = written {
            self.disable_after_error(&error);
        }
    }

    /// Removes all entries from the journal.
    pub fn clear(&mut self) {
        self.write_buffer = Zeroizing::default();
        self.file_bytes = 0;
        if let Some(Err(error)) = self.file.as_ref().map(|file| file.set_len(0)) {
            self.disable_after_error(&error);
        }
    }

    fn compact(&mut self) -> io::Result<()> {
        let Some(file) = &self.file else {
            return Ok(());
        };
        let mut last = HashMap::new();
        for (at, _, entry) in JournalEntries::new(file)? {
            last.insert((entry.tag, entry.key), (at, entry.value.is_empty()));
        }
        let copy = create_file(self.purpose.backing)?;
        let mut writer = BufWriter::with_capacity(WRITE_BUFFER_BYTES, &copy);
        for (at, _, Entry { tag, key, value }) in JournalEntries::new(file)? {
            let of = (tag, key);
            if last.get(&of) == Some(&(at, false)) {
                let head = encode_header(tag, &of.1, &value).ok_or(io::ErrorKind::InvalidData)?;
                for part in [&head[..], &of.1, &value] {
                    writer.write_all(part)?;
                }
            }
        }
        writer.flush()?;
        drop(writer);
        self.file_bytes = copy.metadata()?.len();
        self.compaction_bytes = MIN_COMPACTION_BYTES.max(self.file_bytes * 2);
        self.supervisor.store_file(self.purpose.number, &copy);
        self.file = Some(copy);
        Ok(())
    }

    fn disable_after_error(&mut self, error: &io::Error) {
        tracing::warn!(%error, what = self.purpose.name, "not cached any longer: the next worker will request everything");
        self.write_buffer = Zeroizing::default();
        if let Some(file) = self.file.take() {
            // Frees the space; a file that cannot be emptied cannot be read either.
            let _emptied = file.set_len(0);
        }
    }
}

fn create_file(backing: JournalStorage) -> io::Result<File> {
    match backing {
        JournalStorage::Disk => tempfile::tempfile(),
        JournalStorage::Memory => Ok(memfd_create(c"ambit-journal", MemfdFlags::CLOEXEC)?.into()),
    }
}

/// Encodes the header of an entry: length of the rest, tag, length of the key. `None` if the entry is too long.
fn encode_header(tag: u8, key: &[u8], value: &[u8]) -> Option<[u8; 7]> {
    let [a, b] = u16::try_from(key.len()).ok()?.to_le_bytes();
    let length = u32::try_from(3 + key.len() + value.len()).ok()?;
    let [l0, l1, l2, l3] = length.to_le_bytes();
    (u64::from(length) <= MAX_ENTRY_BYTES).then_some([l0, l1, l2, l3, tag, a, b])
}

/// Iterator over a journal's entries, each with its start and end offset, up to the first incomplete entry.
struct JournalEntries {
    reader: BufReader<PositionedReader>,
    offset: u64,
}

impl JournalEntries {
    fn new(file: &File) -> io::Result<Self> {
        let file = file.as_fd().try_clone_to_owned()?.into();
        Ok(Self {
            reader: BufReader::with_capacity(
                WRITE_BUFFER_BYTES,
                PositionedReader { file, offset: 0 },
            ),
            offset: 0,
        })
    }

    fn read(&mut self) -> io::Result<(u64, u64, Entry)> {
        let mut length = [0; 4];
        self.reader.read_exact(&mut length)?;
        let length = u64::from(u32::from_le_bytes(length));
        let mut rest = Zeroizing::new(Vec::new());
        (&mut self.reader)
            .take(length.min(MAX_ENTRY_BYTES))
            .read_to_end(&mut rest)?;
        let entry = (rest.len() as u64 == length)
            .then(|| parse_entry(&rest))
            .flatten()
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        let begin = self.offset;
        self.offset += 4 + length;
        Ok((begin, self.offset, entry))
    }
}

fn parse_entry(rest: &[u8]) -> Option<Entry> {
    let (tag, rest) = rest.split_first()?;
    let (key_length, rest) = rest.split_first_chunk()?;
    let (key, value) = rest.split_at_checked(u16::from_le_bytes(*key_length).into())?;
    Some(Entry {
        tag: *tag,
        key: key.to_vec(),
        value: Zeroizing::new(value.to_vec()),
    })
}

impl Iterator for JournalEntries {
    type Item = (u64, u64, Entry);

    fn next(&mut self) -> Option<Self::Item> {
        self.read().ok()
    }
}

/// Reader that begins at the start of a file, and does not move the offset that other descriptors of the file share.
struct PositionedReader {
    file: File,
    offset: u64,
}

impl Read for PositionedReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(buffer, self.offset)?;
        self.offset += read as u64;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOURNAL_ID: JournalId = JournalId {
        number: 1,
        name: "test",
        backing: JournalStorage::Memory,
    };

    fn open_journal(held: &File) -> Journal {
        let held = held.as_fd().try_clone_to_owned().unwrap();
        Journal::open(JOURNAL_ID, Some(held), &Supervisor::unsupervised()).unwrap()
    }

    fn unnamed_file() -> File {
        create_file(JournalStorage::Memory).unwrap()
    }

    fn entry_texts(journal: &Journal) -> Vec<String> {
        let entries = journal.entries().unwrap();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        entries
            .map(|entry| format!("{} {}={}", entry.tag, text(&entry.key), text(&entry.value)))
            .collect()
    }

    #[test]
    fn next_process_finds_written_entries() {
        let file = unnamed_file();
        let mut journal = open_journal(&file);
        journal.add(1, b"a", b"x");
        journal.add(2, b"a", b"y");
        journal.flush();
        journal.add(1, b"lost", b"z");
        drop(journal);
        let mut journal = open_journal(&file);
        assert_eq!(entry_texts(&journal), ["1 a=x", "2 a=y"]);
        journal.add(1, b"a", b"");
        journal.flush();
        assert_eq!(
            entry_texts(&open_journal(&file)),
            ["1 a=x", "2 a=y", "1 a="]
        );
        journal.clear();
        journal.add(3, b"", b"new");
        journal.flush();
        assert_eq!(entry_texts(&open_journal(&file)), ["3 =new"]);
    }

    #[test]
    fn truncated_entry_and_all_after_it_are_ignored() {
        let file = unnamed_file();
        let mut journal = open_journal(&file);
        journal.add(1, b"a", b"whole");
        journal.add(1, b"b", b"cut");
        journal.flush();
        let size = file.metadata().unwrap().len();
        for cut in 1..10 {
            file.set_len(size - cut).unwrap();
            let mut journal = open_journal(&file);
            assert_eq!(entry_texts(&journal), ["1 a=whole"]);
            journal.add(1, b"b", b"cut");
            journal.flush();
        }
        assert_eq!(entry_texts(&open_journal(&file)), ["1 a=whole", "1 b=cut"]);
        file.write_all_at(&[0xff; 64], 0).unwrap();
        assert!(entry_texts(&open_journal(&file)).is_empty());
    }

    #[test]
    fn compaction_drops_obsolete_entries() {
        let mut journal = open_journal(&unnamed_file());
        let value = vec![b'v'; 1 << 10];
        for round in 0..20_u8 {
            for key in 0..1000_u16 {
                journal.add(1, &key.to_le_bytes(), &value);
            }
            journal.add(1, b"gone", &value);
            journal.add(1, b"gone", b"");
            journal.add(1, b"round", &[round]);
            journal.flush();
            assert!(
                journal.file_bytes <= MIN_COMPACTION_BYTES + (2 << 20),
                "{}",
                journal.file_bytes
            );
        }
        let entries: HashMap<_, _> = journal
            .entries()
            .unwrap()
            .map(|entry| (entry.key, entry.value))
            .collect();
        assert!(
            entries
                .get(&b"gone"[..])
                .is_none_or(|value| value.is_empty())
        );
        assert_eq!(*entries[&b"round"[..]], [19]);
        assert_eq!(
            entries.len(),
            1002 - usize::from(!entries.contains_key(&b"gone"[..]))
        );
    }

    #[test]
    fn failed_writes_leave_no_partial_record() {
        let file = unnamed_file();
        let mut journal = open_journal(&file);
        journal.add(1, b"a", b"x");
        journal.flush();
        journal.add(1, b"huge", &vec![0; 17 << 20]);
        journal.add(1, b"b", b"y");
        journal.flush();
        assert!(entry_texts(&open_journal(&file)).is_empty());
    }
}
