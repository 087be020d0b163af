//! Programs of one pod, pinned in a directory: installed, changed and removed.

use std::{
    collections::BTreeSet,
    error::Error,
    fmt, fs,
    io::{self, ErrorKind},
    net::TcpListener,
    os::fd::AsFd,
    path::{Path, PathBuf},
    sync::LazyLock,
};

use aya::{
    Ebpf, EbpfLoader, Pod,
    maps::{Array, HashMap, Map, MapData, SockMap},
    programs::{
        CgroupAttachMode, CgroupSockAddr, SkLookup, SockOps,
        links::{FdLink, PinnedLink},
    },
};

use parking_lot::Mutex;

use crate::{
    CaptureError, Settings,
    settings::{Encoded, WORDS},
};

/// Programs and maps as the compiler built them from `programs/capture.c`.
static OBJECT: &[u8] = aya::include_bytes_aligned!("../programs/capture.o");
const OBJECT_BYTES: &[u8] = include_bytes!("../programs/capture.o");

/// Checksum of [`OBJECT`], kept in the settings: programs of another version of Ambit differ by it.
const OBJECT_CHECKSUM: u32 = checksum(OBJECT_BYTES);

/// Loader of all pods' programs. Each one reads and parses the types of the whole kernel (megabytes) as it is made,
/// which these programs do not need.
static LOADER: LazyLock<Mutex<EbpfLoader<'static>>> = LazyLock::new(|| {
    let mut loader = EbpfLoader::new();
    loader.btf(None);
    Mutex::new(loader)
});

/// Number of listeners of each role: at most one for each worker of a proxy.
pub const SLOTS: u32 = 16;

const SETTINGS: &str = "SETTINGS";
const ADDRESSES: &str = "ADDRESSES";
const PROBES: &str = "PROBES";
/// Map of the proxy's listeners. Its layout is the same in all versions of Ambit, so that proxies of any version enter
/// theirs.
const LISTENERS: &str = "LISTENERS";
/// Map with the answer of the proxy, which no program reads. Its layout is the same in all versions too.
const PROXY: &str = "PROXY";
/// Maps of one layout.
const MAPS: [&str; 3] = [SETTINGS, ADDRESSES, PROBES];

/// Directory of the programs and their maps within the pod's. Another number whenever the maps change: programs and
/// agents of different versions then never share one that only one of them understands.
const LAYOUT: &str = "layout-1";

pub(crate) const CONNECTING: [&str; 2] = ["connecting_v4", "connecting_v6"];
pub(crate) const ACCEPTED: &str = "accepted";
const STEER: &str = "steer";
/// Programs in the order in which they are attached: openings are steered before sockets are marked.
const PROGRAMS: [&str; 4] = [STEER, ACCEPTED, CONNECTING[0], CONNECTING[1]];

/// Role of a proxy's listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Listener for connections of the pod's application.
    Outbound,
    /// Listener for plaintext connections from outside.
    Inbound,
}

/// Programs of one pod, pinned in a directory.
#[derive(Clone, Debug)]
pub struct Capture {
    directory: PathBuf,
}

impl Capture {
    /// Names the programs that are, or will be, pinned in `directory`, which is on a bpffs and the pod's own.
    pub fn at(directory: impl Into<PathBuf>) -> Self {
        Self {
            directory: directory.into(),
        }
    }

    /// Creates the maps, so that a proxy can enter its listeners before the programs are attached, and asks it to:
    /// [`Self::has_proxy`] is false until it has.
    ///
    /// # Errors
    /// When the kernel refuses a map, or the directory cannot be created.
    pub fn prepare(&self) -> Result<(), CaptureError> {
        drop(self.load()?);
        self.proxy()?
            .set(0, 0, 0)
            .map_err(|error| map_error(PROXY, error))
    }

    /// Whether [`Self::prepare`] has created the maps, and nothing has removed them since.
    pub fn is_prepared(&self) -> bool {
        self.path(LISTENERS).exists()
    }

    /// Whether a proxy has entered its listeners since the last call of [`Self::prepare`].
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn has_proxy(&self) -> Result<bool, CaptureError> {
        let entered = self.proxy()?.get(&0, 0);
        Ok(entered.map_err(|error| map_error(PROXY, error))? != 0)
    }

    /// Loads the programs, applies `settings`, and attaches them to the pod's cgroup and network namespace.
    ///
    /// Programs that are already pinned are replaced, and the map of the proxy's listeners stays. The new program is
    /// attached before the old one goes, so that every opening meets one of them. So it is with those of another layout,
    /// which another version of Ambit has pinned.
    ///
    /// # Errors
    /// When the kernel refuses a step. Pins of the steps before it stay: [`Self::is_complete`] is false, and
    /// another attempt or [`Self::remove`] continues from there.
    pub fn install(
        &self,
        cgroup: impl AsFd,
        netns: impl AsFd,
        settings: &Settings,
    ) -> Result<(), CaptureError> {
        let encoded = settings.encode(OBJECT_CHECKSUM)?;
        let mut programs = self.load()?;
        self.write(&encoded)?;
        for program in PROGRAMS {
            let link = attach(&mut programs, program, &cgroup, &netns)?;
            self.pin(link, program)?;
        }
        self.other_layouts()?
            .iter()
            .try_for_each(|layout| remove_directory(layout))
    }

    /// Reads the object file, and opens its pinned maps or creates them.
    fn load(&self) -> Result<Ebpf, CaptureError> {
        for directory in [&self.directory, &self.directory.join(LAYOUT)] {
            match fs::create_dir(directory) {
                Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                    return Err(pin_error(directory, error));
                }
                _ => {}
            }
        }
        let mut loader = LOADER.lock();
        for map in MAPS.into_iter().chain([LISTENERS]) {
            loader.map_pin_path(map, self.path(map));
        }
        let programs = loader
            .load(OBJECT)
            .map_err(|error| CaptureError::Load(error.into()))?;
        let path = self.path(PROXY);
        if !path.exists() {
            Array::<MapData, u32>::create(1, 0)
                .map_err(|error| map_error(PROXY, error))?
                .pin(&path)
                .map_err(|error| pin_error(&path, error))?;
        }
        Ok(programs)
    }

    /// Whether [`Self::pause`] has stopped the capture.
    ///
    /// # Errors
    /// When the programs are not pinned, or a map cannot be read.
    pub fn is_paused(&self) -> Result<bool, CaptureError> {
        let words = self.settings()?.get(&0, 0);
        let words = words.map_err(|error| map_error(SETTINGS, error))?;
        Ok(words.first() == Some(&0))
    }

    /// Whether anything is pinned.
    pub fn exists(&self) -> bool {
        self.directory.exists()
    }

    /// Changes the settings of pinned programs. Single addresses and probes are added and removed, so that those in both
    /// the old and the new settings hold at every moment.
    ///
    /// # Errors
    /// When the programs are not pinned, or a map cannot be written.
    pub fn set(&self, settings: &Settings) -> Result<(), CaptureError> {
        self.write(&settings.encode(OBJECT_CHECKSUM)?)
    }

    /// Stops the capture of connections that are opened from now on. Those in the proxy continue.
    ///
    /// # Errors
    /// When the programs are not pinned, or a map cannot be written.
    pub fn pause(&self) -> Result<(), CaptureError> {
        self.change_flags(0)
    }

    /// Whether the pinned programs have exactly these settings, and are those of this version of Ambit.
    ///
    /// # Errors
    /// When the programs are not pinned, or a map cannot be read.
    pub fn has(&self, settings: &Settings) -> Result<bool, CaptureError> {
        let present = self
            .settings()?
            .get(&0, 0)
            .map_err(|error| map_error(SETTINGS, error))?;
        let present = Encoded {
            settings: present,
            addresses: keys(&self.set_of(ADDRESSES)?, ADDRESSES)?
                .into_iter()
                .collect(),
            probes: keys(&self.set_of(PROBES)?, PROBES)?.into_iter().collect(),
        };
        Ok(present == settings.encode(OBJECT_CHECKSUM)?)
    }

    /// Whether all programs and maps are pinned, and none of another layout.
    ///
    /// # Errors
    /// When a pin exists but cannot be opened.
    pub fn is_complete(&self) -> Result<bool, CaptureError> {
        for map in MAPS.into_iter().chain([LISTENERS]) {
            if !self.path(map).exists() {
                return Ok(false);
            }
        }
        for program in PROGRAMS {
            let path = self.path(program);
            if !path.exists() {
                return Ok(false);
            }
            PinnedLink::from_pin(&path).map_err(|error| pin_error(&path, error))?;
        }
        Ok(self.other_layouts()?.is_empty())
    }

    /// Returns the map of the proxy's listeners.
    ///
    /// # Errors
    /// When there is none, or the process may not open it.
    pub fn listeners(&self) -> Result<Listeners, CaptureError> {
        let map = SockMap::try_from(self.map(LISTENERS)?);
        Ok(Listeners {
            map: map.map_err(|error| map_error(LISTENERS, error))?,
            capture: self.clone(),
        })
    }

    /// Detaches the programs and removes their pins: marking first, steering last. Connections in the proxy continue
    /// as long as their routes exist. Without pins nothing happens.
    ///
    /// # Errors
    /// When a pin cannot be removed.
    pub fn remove(&self) -> Result<(), CaptureError> {
        // The kernel detaches programs some time after their pins are gone. Where it refuses to open the map, they capture
        // until then.
        let _paused = self.pause();
        for program in PROGRAMS.into_iter().rev() {
            let path = self.path(program);
            absent_is_ok(fs::remove_file(&path)).map_err(|error| pin_error(&path, error))?;
        }
        for layout in self.other_layouts()? {
            remove_directory(&layout)?;
        }
        remove_directory(&self.directory.join(LAYOUT))?;
        remove_directory(&self.directory)
    }

    /// Returns the directories of programs of other layouts.
    fn other_layouts(&self) -> Result<Vec<PathBuf>, CaptureError> {
        let error = |error| pin_error(&self.directory, error);
        let mut found = Vec::new();
        let entries = match fs::read_dir(&self.directory) {
            Ok(entries) => entries,
            Err(absent) if absent.kind() == ErrorKind::NotFound => return Ok(found),
            Err(other) => return Err(error(other)),
        };
        for entry in entries {
            let entry = entry.map_err(error)?;
            if entry.file_name() != LAYOUT && entry.file_type().map_err(error)?.is_dir() {
                found.push(entry.path());
            }
        }
        Ok(found)
    }

    /// Returns the path of a pin: what all layouts share is in the pod's directory.
    fn path(&self, name: &str) -> PathBuf {
        match name {
            LISTENERS | PROXY => self.directory.join(name),
            _ => self.directory.join(LAYOUT).join(name),
        }
    }

    /// Returns the pinned programs, of all layouts, that are attached to the pod's network namespace.
    pub(crate) fn steering(&self) -> Result<Vec<PathBuf>, CaptureError> {
        let own = [self.directory.join(LAYOUT)].into_iter();
        let pins = own.chain(self.other_layouts()?).map(|dir| dir.join(STEER));
        Ok(pins.filter(|pin| pin.exists()).collect())
    }

    /// Whether a program is pinned, or what another layout may have in its place.
    pub(crate) fn has_programs(&self) -> Result<bool, CaptureError> {
        let is_pinned = PROGRAMS.iter().any(|name| self.path(name).exists());
        Ok(is_pinned || !self.other_layouts()?.is_empty())
    }

    /// Pins a link in place of the one that has its name, which is then detached.
    fn pin(&self, link: FdLink, name: &str) -> Result<(), CaptureError> {
        let (new, path) = (self.path(&temporary(name)), self.path(name));
        absent_is_ok(fs::remove_file(&new)).map_err(|error| pin_error(&new, error))?;
        link.pin(&new).map_err(|error| pin_error(&new, error))?;
        fs::rename(&new, &path).map_err(|error| pin_error(&path, error))
    }

    fn write(&self, encoded: &Encoded) -> Result<(), CaptureError> {
        replace_keys(&mut self.set_of(ADDRESSES)?, ADDRESSES, &encoded.addresses)?;
        replace_keys(&mut self.set_of(PROBES)?, PROBES, &encoded.probes)?;
        self.settings()?
            .set(0, encoded.settings, 0)
            .map_err(|error| map_error(SETTINGS, error))
    }

    fn change_flags(&self, flags: u32) -> Result<(), CaptureError> {
        let error = |error| map_error(SETTINGS, error);
        let mut map = self.settings()?;
        let mut words = map.get(&0, 0).map_err(error)?;
        if let Some(word) = words.first_mut() {
            *word = flags;
        }
        map.set(0, words, 0).map_err(error)
    }

    fn settings(&self) -> Result<Array<MapData, [u32; WORDS]>, CaptureError> {
        Array::try_from(self.map(SETTINGS)?).map_err(|error| map_error(SETTINGS, error))
    }

    fn proxy(&self) -> Result<Array<MapData, u32>, CaptureError> {
        Array::try_from(self.map(PROXY)?).map_err(|error| map_error(PROXY, error))
    }

    fn map(&self, name: &'static str) -> Result<Map, CaptureError> {
        MapData::from_pin(self.path(name))
            .and_then(Map::from_map_data)
            .map_err(|error| map_error(name, error))
    }

    fn set_of<K: Pod>(&self, name: &'static str) -> Result<HashMap<MapData, K, u8>, CaptureError> {
        HashMap::try_from(self.map(name)?).map_err(|error| map_error(name, error))
    }
}

/// Listeners that a pod's programs give openings to. An entry goes with its socket: when no process has it open.
pub struct Listeners {
    map: SockMap<MapData>,
    capture: Capture,
}

impl fmt::Debug for Listeners {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Listeners").finish_non_exhaustive()
    }
}

impl Listeners {
    /// Enters a listener, in place of the one in its slot. Of the listeners of a role that share a port the kernel
    /// chooses for each opening, whichever of them are entered.
    ///
    /// # Errors
    /// When the slot does not exist, or the socket does not listen.
    pub fn put(
        &mut self,
        role: Role,
        slot: u32,
        listener: &TcpListener,
    ) -> Result<(), CaptureError> {
        if slot >= SLOTS {
            return Err(CaptureError::TooMany {
                what: "listeners of one port",
                count: usize::try_from(slot)
                    .unwrap_or(usize::MAX)
                    .saturating_add(1),
                limit: usize::try_from(SLOTS).unwrap_or_default(),
            });
        }
        let first = match role {
            Role::Outbound => 0,
            Role::Inbound => SLOTS,
        };
        self.map
            .set(first + slot, listener, 0)
            .map_err(|error| map_error(LISTENERS, error))
    }

    /// Tells the agent that the listeners of all roles are entered: see [`Capture::has_proxy`].
    ///
    /// # Errors
    /// When the agent's map cannot be written.
    pub fn confirm(&self) -> Result<(), CaptureError> {
        self.capture
            .proxy()?
            .set(0, 1, 0)
            .map_err(|error| map_error(PROXY, error))
    }
}

/// Returns the FNV-1a checksum.
const fn checksum(mut bytes: &[u8]) -> u32 {
    let mut sum = 0x811c_9dc5_u32;
    while let [byte, rest @ ..] = bytes {
        sum = (sum ^ *byte as u32).wrapping_mul(0x0100_0193);
        bytes = rest;
    }
    sum
}

fn attach(
    programs: &mut Ebpf,
    name: &'static str,
    cgroup: impl AsFd,
    netns: impl AsFd,
) -> Result<FdLink, CaptureError> {
    let error = |source: Box<dyn Error + Send + Sync>| CaptureError::Attach {
        program: name,
        source,
    };
    let found = programs
        .program_mut(name)
        .ok_or_else(|| error("the object file has no such program".into()))?;
    // Links of cgroups always permit those of others beside them: the mode is one of older ways to attach.
    let mode = CgroupAttachMode::Single;
    let link = match name {
        STEER => {
            let program: &mut SkLookup = found.try_into().map_err(|e| error(Box::new(e)))?;
            program.load().map_err(|e| CaptureError::Load(e.into()))?;
            let id = program.attach(netns).map_err(|e| error(e.into()))?;
            Ok(program.take_link(id).map_err(|e| error(e.into()))?.into())
        }
        ACCEPTED => {
            let program: &mut SockOps = found.try_into().map_err(|e| error(Box::new(e)))?;
            program.load().map_err(|e| CaptureError::Load(e.into()))?;
            let id = program.attach(cgroup, mode).map_err(|e| error(e.into()))?;
            FdLink::try_from(program.take_link(id).map_err(|e| error(e.into()))?)
        }
        _ => {
            let program: &mut CgroupSockAddr = found.try_into().map_err(|e| error(Box::new(e)))?;
            program.load().map_err(|e| CaptureError::Load(e.into()))?;
            let id = program.attach(cgroup, mode).map_err(|e| error(e.into()))?;
            FdLink::try_from(program.take_link(id).map_err(|e| error(e.into()))?)
        }
    };
    link.map_err(|e| error(e.into()))
}

/// Adds the keys that a map lacks, and then removes those that it should not have.
fn replace_keys<K: Pod + Ord>(
    map: &mut HashMap<MapData, K, u8>,
    name: &'static str,
    wanted: &BTreeSet<K>,
) -> Result<(), CaptureError> {
    let present = keys(map, name)?;
    for key in wanted.iter().filter(|key| !present.contains(key)) {
        map.insert(key, 1, 0)
            .map_err(|error| map_error(name, error))?;
    }
    for key in present.iter().filter(|key| !wanted.contains(key)) {
        map.remove(key).map_err(|error| map_error(name, error))?;
    }
    Ok(())
}

fn keys<K: Pod>(map: &HashMap<MapData, K, u8>, name: &'static str) -> Result<Vec<K>, CaptureError> {
    map.keys()
        .collect::<Result<_, _>>()
        .map_err(|error| map_error(name, error))
}

/// Returns the name that a link is pinned by until it replaces the one before it.
fn temporary(name: &str) -> String {
    format!("{name}-next")
}

/// Removes a directory of pins, and the pins in it.
fn remove_directory(directory: &Path) -> Result<(), CaptureError> {
    let pins = match fs::read_dir(directory) {
        Ok(pins) => pins,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(pin_error(directory, error)),
    };
    for pin in pins {
        let path = pin.map_err(|error| pin_error(directory, error))?.path();
        absent_is_ok(fs::remove_file(&path)).map_err(|error| pin_error(&path, error))?;
    }
    absent_is_ok(fs::remove_dir(directory)).map_err(|error| pin_error(directory, error))
}

pub(crate) fn absent_is_ok(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

fn map_error(map: &'static str, source: impl Into<Box<dyn Error + Send + Sync>>) -> CaptureError {
    CaptureError::Map {
        map,
        source: source.into(),
    }
}

pub(crate) fn pin_error(
    path: &Path,
    source: impl Into<Box<dyn Error + Send + Sync>>,
) -> CaptureError {
    CaptureError::Pin {
        path: path.to_owned(),
        source: source.into(),
    }
}
