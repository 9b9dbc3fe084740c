//! Downloads models into the cache. Only complete files with the right hash appear in the cache.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use errors::{FileError, WithPath as _};
use sha1::Sha1;
use sha2::{Digest, Sha256};

use crate::client::{Commit, Described, HubClient};
use crate::select::{INDEX, Selection, select, shards};
use crate::{Fetched, Hub, HubError, ModelName};

/// Receives the progress, and can stop the download.
type Watch<'a> = &'a mut dyn FnMut(Fetched<'_>) -> ControlFlow<()>;

/// Consecutive connections that may fail before the first byte arrives.
const ATTEMPTS: u32 = 5;

/// After the first failed connection; doubles with each further one.
const PAUSE: Duration = Duration::from_millis(500);

const BLOCK: usize = 1 << 18;

/// The newest commit. Returns its path in the cache.
pub fn download(hub: &Hub, name: &ModelName, watch: Watch<'_>) -> Result<PathBuf, HubError> {
    let client = HubClient::new(hub);
    let commit = client.commit(name)?;
    let names: Vec<String> = commit.files.iter().map(|file| file.name.clone()).collect();
    let selection = select(name, &names)?;
    let mut download = Download {
        name,
        client: &client,
        commit: &commit,
        folder: hub.folder(&name.repository),
        locks: hub.cache.join(".locks").join(hub.folder(&name.repository).file_name().unwrap_or_default()),
        done: 0,
        total: 0,
        watch,
    };
    let path = match &selection {
        Selection::Gguf(file) => {
            download.files(std::slice::from_ref(file))?;
            download.link(file)
        }
        Selection::Folder { files, has_index } => {
            if *has_index {
                download.files(&[INDEX.to_owned()])?;
                let path = download.link(INDEX);
                let index = files::read(&path, files::limits::INDEX)?;
                let what = || format!("`{INDEX}` has no `weight_map`");
                let url = || client.address(name, &commit.sha, INDEX);
                let shards = shards(&index).ok_or_else(|| HubError::Answer { url: url(), what: what() })?;
                download.files(&[&files[..], &shards].concat())?;
            } else {
                download.files(files)?;
            }
            download.snapshot()
        }
    };
    download.keep_revision()?;
    Ok(path)
}

struct Download<'a> {
    name: &'a ModelName,
    client: &'a HubClient<'a>,
    commit: &'a Commit,
    folder: PathBuf,
    locks: PathBuf,
    done: u64,
    total: u64,
    watch: Watch<'a>,
}

impl Download<'_> {
    fn snapshot(&self) -> PathBuf {
        self.folder.join("snapshots").join(&self.commit.sha)
    }

    fn link(&self, file: &str) -> PathBuf {
        self.snapshot().join(file)
    }

    fn files(&mut self, files: &[String]) -> Result<(), HubError> {
        let mut described = Vec::new();
        for file in files {
            let known = self.commit.files.iter().find(|known| known.name == *file);
            described.push(known.ok_or_else(|| self.missing(file))?.clone());
        }
        (self.done, self.total) = (0, described.iter().map(|file| file.size).sum());
        for file in &described {
            self.file(file)?;
        }
        Ok(())
    }

    /// `more` bytes of the current file have arrived.
    fn tell(&mut self, file: &str, more: u64) -> Result<(), HubError> {
        match (self.watch)(Fetched { file, done: self.done + more, total: self.total }) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(HubError::Stopped),
        }
    }

    fn missing(&self, file: &str) -> HubError {
        let known = self.commit.files.iter().map(|known| known.name.clone()).collect();
        HubError::NoFile { name: self.name.clone().into(), file: file.to_owned(), known }
    }

    fn file(&mut self, file: &Described) -> Result<(), HubError> {
        let hash = file.hash().ok_or_else(|| HubError::Answer {
            url: self.client.address(self.name, &self.commit.sha, &file.name),
            what: format!("`{}` has no hash", file.name),
        })?;
        let link = self.link(&file.name);
        let blob = self.folder.join("blobs").join(hash);
        if !link.exists() {
            if !blob.exists() {
                self.blob(file, hash, &blob)?;
            }
            place(&blob, &link, file.name.matches('/').count())?;
        }
        self.done += file.size;
        self.tell(&file.name, 0)
    }

    /// The file appears under its hash only when complete.
    fn blob(&mut self, file: &Described, hash: &str, blob: &Path) -> Result<(), HubError> {
        make_folder(&self.locks)?;
        make_folder(&self.folder.join("blobs"))?;
        let lock = self.locks.join(format!("{hash}.lock"));
        let lock = File::options().create(true).append(true).open(&lock).with_path("create", &lock)?;
        // Another process may currently download the same file.
        match lock.lock() {
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {}
            locked => locked.with_path("lock", &self.locks)?,
        }
        if blob.exists() {
            return Ok(());
        }
        let part = blob.with_file_name(format!("{hash}.incomplete"));
        let found = self.part(file, hash.len(), &part)?;
        if found != hash {
            fs::remove_file(&part).with_path("remove", &part)?;
            let (name, file) = (self.name.clone().into(), file.name.clone());
            return Err(HubError::Hash { name, file, found, expected: hash.to_owned() });
        }
        Ok(fs::rename(&part, blob).with_path("rename", &part)?)
    }

    /// Returns the hash of the whole file. `digits` is 64 for SHA-256, 40 for SHA-1.
    fn part(&mut self, file: &Described, digits: usize, part: &Path) -> Result<String, HubError> {
        let open = File::options().create(true).read(true).append(true).open(part);
        let mut written = open.with_path("create", part)?;
        let mut hash = Hash::of(digits, file.size);
        let mut length = hash.all(&mut written).with_path("read", part)?;
        if length > file.size {
            // The partial file is longer than the complete file, so it belongs to another file.
            written.set_len(0).with_path("write", part)?;
            (hash, length) = (Hash::of(digits, file.size), 0);
        }
        let mut failures = 0;
        while length < file.size {
            let begin = length;
            let mut went_wrong = self.some(file, part, &mut written, &mut hash, &mut length);
            // The server can close a connection early without an error.
            if went_wrong.is_ok() && length < file.size {
                let url = self.client.address(self.name, &self.commit.sha, &file.name);
                let source = io::Error::from(io::ErrorKind::UnexpectedEof).into();
                went_wrong = Err(HubError::Connection { url, source });
            }
            let Err(error) = went_wrong else { break };
            let may_pass = match &error {
                HubError::Connection { .. } => true,
                HubError::Status { status, .. } => *status == 429 || *status >= 500,
                _ => false,
            };
            failures = if length > begin { 1 } else { failures + 1 };
            if !may_pass || failures >= ATTEMPTS {
                return Err(error);
            }
            thread::sleep(PAUSE * (1 << (failures - 1)));
        }
        written.sync_all().with_path("write", part)?;
        Ok(hash.digits())
    }

    /// Opens one connection to the hub, and appends the received bytes to a partial file.
    fn some(
        &mut self,
        file: &Described,
        part: &Path,
        written: &mut File,
        hash: &mut Hash,
        length: &mut u64,
    ) -> Result<(), HubError> {
        let (mut body, begins) = self.client.file(self.name, &self.commit.sha, &file.name, *length)?;
        if begins != *length {
            // Some servers ignore the requested range, and send the file from its first byte.
            written.set_len(0).with_path("write", part)?;
            (*hash, *length) = (Hash::of(hash.length(), file.size), 0);
        }
        let mut block = vec![0; BLOCK];
        let mut read = || match body.read(&mut block) {
            Ok(0) => ControlFlow::Break(Ok(())),
            Ok(read) => ControlFlow::Continue(block[..read].to_vec()),
            Err(source) => ControlFlow::Break(Err(source)),
        };
        loop {
            let bytes = match read() {
                ControlFlow::Continue(bytes) => bytes,
                ControlFlow::Break(end) => {
                    let url = || self.client.address(self.name, &self.commit.sha, &file.name);
                    return end.map_err(|source| HubError::Connection { url: url(), source: source.into() });
                }
            };
            written.write_all(&bytes).with_path("write", part)?;
            hash.update(&bytes);
            *length += bytes.len() as u64;
            self.tell(&file.name, *length)?;
            if *length > file.size {
                return Ok(());
            }
        }
    }

    fn keep_revision(&self) -> Result<(), HubError> {
        let revision = self.name.revision();
        if revision == self.commit.sha {
            return Ok(());
        }
        let path = self.folder.join("refs").join(revision);
        let folder = path.parent().unwrap_or(&self.folder);
        make_folder(folder)?;
        let write = || {
            let mut file = tempfile::NamedTempFile::new_in(folder)?;
            file.write_all(self.commit.sha.as_bytes())?;
            file.persist(&path).map_err(|error| error.error)
        };
        write().with_path("write", &path)?;
        Ok(())
    }
}

/// Computes the hash of a file from the file's bytes as the bytes arrive from the hub.
enum Hash {
    Large(Sha256),
    /// Git's hash of a file, which is the SHA-1 of the file's length and content.
    Small(Sha1),
}

impl Hash {
    fn of(digits: usize, size: u64) -> Self {
        match digits {
            64 => Self::Large(Sha256::new()),
            _ => Self::Small(Sha1::new_with_prefix(format!("blob {size}\0"))),
        }
    }

    fn length(&self) -> usize {
        if matches!(self, Self::Large(_)) { 64 } else { 40 }
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Large(hash) => hash.update(bytes),
            Self::Small(hash) => hash.update(bytes),
        }
    }

    fn all(&mut self, file: &mut File) -> io::Result<u64> {
        file.seek(SeekFrom::Start(0))?;
        let (mut block, mut length) = (vec![0; BLOCK], 0);
        loop {
            match file.read(&mut block)? {
                0 => return Ok(length),
                read => {
                    self.update(&block[..read]);
                    length += read as u64;
                }
            }
        }
    }

    fn digits(self) -> String {
        let digits = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        match self {
            Self::Large(hash) => digits(&hash.finalize()),
            Self::Small(hash) => digits(&hash.finalize()),
        }
    }
}

fn make_folder(folder: &Path) -> Result<(), FileError> {
    fs::create_dir_all(folder).with_path("create", folder)
}

/// A relative link, `depth` folders deep. It replaces an existing one, for example one whose blob was
/// removed.
fn place(blob: &Path, link: &Path, depth: usize) -> Result<(), FileError> {
    let folder = link.parent().unwrap_or(link);
    make_folder(folder)?;
    let name = Path::new("blobs").join(blob.file_name().unwrap_or_default());
    let target = Path::new(&"../".repeat(depth + 2)).join(name);
    let make = |path: &Path| match linked(&target, path) {
        // Some file systems do not support links.
        Err(error) if error.kind() == io::ErrorKind::Unsupported => fs::copy(blob, path).map(drop),
        made => made,
    };
    let made = tempfile::Builder::new().make_in(folder, make).with_path("create a file in", folder)?;
    made.into_temp_path().persist(link).map_err(|error| error.error).with_path("create", link)
}

#[cfg(unix)]
fn linked(target: &Path, path: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, path)
}

#[cfg(not(unix))]
fn linked(_: &Path, _: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
