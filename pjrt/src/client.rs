//! [`Plugin`], [`Client`], [`Executable`] and [`PjrtBuffer`] are the safe interface.

mod serialized;

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use ops::TensorType;

use crate::error::{PjrtError, PjrtStatus};
use crate::ffi::{Library, RawClient, RawDevice, RawExecutable, RawTensor};
use crate::options::XlaOptions;

/// A PJRT plugin that is loaded into this process.
#[derive(Clone)]
pub struct Plugin {
    library: Rc<Library>,
    path: PathBuf,
}

/// The devices of a plugin in this process, shared by everything created on them. A clone refers to the same
/// client.
#[derive(Clone)]
pub struct Client(Rc<Inner>);

struct Inner {
    raw: Rc<RawClient>,
    platform: String,
    platform_version: String,
    devices: Vec<(RawDevice, PjrtDevice)>,
    uploaded: Cell<u64>,
    downloaded: Cell<u64>,
}

/// A device, as its plugin describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PjrtDevice {
    /// The number of the device among the client's devices.
    pub ordinal: usize,
    /// XLA's number of the device.
    pub id: i32,
    /// The device's model, such as `NVIDIA H100 80GB HBM3`.
    pub kind: String,
}

/// A program that is compiled for one device.
pub struct Executable {
    client: Client,
    raw: RawExecutable,
    results: Vec<TensorType>,
}

/// A tensor on a device. The type does not implement `Clone`, because a call may reuse the tensor's memory.
pub struct PjrtBuffer {
    client: Client,
    raw: RawTensor,
    ty: TensorType,
}

/// An argument of a call.
pub enum PjrtArgument<'a> {
    /// The call consumes the tensor. A result reuses the tensor's memory if the module declares this with
    /// `tf.aliasing_output`.
    Donated(PjrtBuffer),
    /// The call only reads the tensor.
    Kept(&'a PjrtBuffer),
}

impl Plugin {
    /// Loads a plugin, a shared library that exports `GetPjrtApi`. The plugin's code runs in this process, so
    /// load only plugins that you trust.
    ///
    /// # Errors
    /// Returns an error if the library cannot be loaded, is not a plugin, has another version of the API, or
    /// does not start.
    pub fn load(path: &Path) -> Result<Self, PjrtError> {
        Ok(Self { library: Library::load(path)?, path: path.to_owned() })
    }

    /// The version of the PJRT API that the plugin was built with: major and minor.
    pub fn version(&self) -> (i32, i32) {
        self.library.version
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Starts the plugin's platform in this process.
    ///
    /// # Errors
    /// Returns an error if a driver, a library or a device is missing.
    pub fn client(&self) -> Result<Client, PjrtError> {
        let start = |status| PjrtError::Start { path: self.path.clone(), status };
        let raw = RawClient::new(&self.library).map_err(start)?;
        let described = |(ordinal, device): (usize, RawDevice)| {
            let (id, kind) = raw.described(device)?;
            Ok((device, PjrtDevice { ordinal, id, kind }))
        };
        let devices = raw.devices().and_then(|all| all.into_iter().enumerate().map(described).collect());
        let devices = devices.map_err(start)?;
        let platform = raw.platform().map_err(start)?;
        let platform_version = raw.platform_version().map_err(start)?;
        let (uploaded, downloaded) = Default::default();
        Ok(Client(Rc::new(Inner { raw, platform, platform_version, devices, uploaded, downloaded })))
    }
}

impl Client {
    /// The platform's name, such as `cpu`, `cuda`, `rocm` or `tpu`.
    pub fn platform(&self) -> &str {
        &self.0.platform
    }

    /// The version of the platform, in the plugin's own format.
    pub fn platform_version(&self) -> &str {
        &self.0.platform_version
    }

    pub fn devices(&self) -> impl Iterator<Item = &PjrtDevice> {
        self.0.devices.iter().map(|(_, device)| device)
    }

    /// The numbers of bytes copied to devices and from devices so far.
    pub fn transferred(&self) -> (u64, u64) {
        (self.0.uploaded.get(), self.0.downloaded.get())
    }

    fn device(&self, ordinal: usize) -> Result<&(RawDevice, PjrtDevice), PjrtError> {
        self.0.devices.get(ordinal).ok_or_else(|| PjrtError::NoDevice {
            platform: self.0.platform.clone(),
            ordinal,
            count: self.0.devices.len(),
        })
    }

    /// Compiles the text of a StableHLO module for the device with this number. Calls run the module's
    /// function `main`.
    ///
    /// # Errors
    /// Returns an error if the device does not exist, XLA rejects the module, or a result has an unsupported
    /// type.
    pub fn compile(
        &self,
        module: &str,
        ordinal: usize,
        options: &XlaOptions,
    ) -> Result<Executable, PjrtError> {
        let (_, device) = self.device(ordinal)?;
        let refused = |status| match PjrtError::failed("compile the module", status) {
            PjrtError::Failed { status, .. } => PjrtError::Compile(status),
            error => error,
        };
        let raw = self.0.raw.compile(module, &options.encode(device.id.into())).map_err(refused)?;
        self.loaded(raw, refused)
    }

    /// An executable with the types of its results. `refused` converts a failure of the plugin.
    fn loaded(
        &self,
        raw: RawExecutable,
        refused: impl Fn(PjrtStatus) -> PjrtError,
    ) -> Result<Executable, PjrtError> {
        let types = raw.results().map_err(refused)?;
        let known = |(index, ty): (usize, Option<TensorType>)| ty.ok_or(PjrtError::ResultType { index });
        let results = types.into_iter().enumerate().map(known).collect::<Result<_, _>>()?;
        Ok(Executable { client: self.clone(), raw, results })
    }

    /// Copies the little-endian bytes of a tensor to the device with this number.
    ///
    /// # Errors
    /// Returns an error if the device does not exist or has not enough memory, or if the number of bytes does
    /// not match the type.
    pub fn upload(&self, ordinal: usize, ty: &TensorType, bytes: &[u8]) -> Result<PjrtBuffer, PjrtError> {
        let &(device, _) = self.device(ordinal)?;
        if bytes.len() != ty.bytes() {
            let (expected, found) = (ty.bytes(), bytes.len());
            return Err(PjrtError::ByteCount { ty: ty.clone(), expected, found });
        }
        let sent = self.0.raw.upload(device, ty, bytes).ok_or(PjrtError::Element(ty.element))?;
        let raw =
            sent.map_err(|status| PjrtError::failed(format!("upload a tensor of type `{ty}`"), status))?;
        self.0.uploaded.set(self.0.uploaded.get() + bytes.len() as u64);
        Ok(PjrtBuffer { client: self.clone(), raw, ty: ty.clone() })
    }
}

impl Executable {
    /// The types of the program's results.
    pub fn results(&self) -> &[TensorType] {
        &self.results
    }

    /// Calls the program. The call may still run when this function returns; reading a result waits for it, and reports
    /// its failure.
    ///
    /// # Errors
    /// Returns an error if an argument belongs to another client, or if the number or the size of the
    /// arguments does not match the module.
    pub fn execute(&self, arguments: Vec<PjrtArgument<'_>>) -> Result<Vec<PjrtBuffer>, PjrtError> {
        let mut kept = Vec::new();
        let mut passed = Vec::with_capacity(arguments.len());
        for (index, argument) in arguments.iter().enumerate() {
            let buffer = match argument {
                PjrtArgument::Donated(buffer) => buffer,
                PjrtArgument::Kept(buffer) => {
                    kept.push(index as i64);
                    buffer
                }
            };
            if !buffer.raw.belongs_to(&self.client.0.raw) {
                return Err(PjrtError::OtherClient { index });
            }
            passed.push(&buffer.raw);
        }
        let returned = self.raw.execute(&passed, &kept, self.results.len());
        let returned = returned.map_err(|status| PjrtError::failed("call the module", status))?;
        let typed = returned.into_iter().zip(&self.results);
        Ok(typed.map(|(raw, ty)| PjrtBuffer { client: self.client.clone(), raw, ty: ty.clone() }).collect())
    }
}

impl PjrtBuffer {
    pub fn ty(&self) -> &TensorType {
        &self.ty
    }

    /// The little-endian bytes of the tensor.
    ///
    /// # Errors
    /// Returns an error if the call that computes the tensor fails, or if the copy fails.
    pub fn read(&self) -> Result<Vec<u8>, PjrtError> {
        let mut bytes = vec![0; self.ty.bytes()];
        self.counted(self.raw.read(&mut bytes), bytes.len())?;
        Ok(bytes)
    }

    /// The little-endian bytes of the element with this index, in row-major order.
    ///
    /// # Errors
    /// Returns an error if the index is not inside the tensor, or the copy fails.
    pub fn read_element(&self, index: usize) -> Result<Vec<u8>, PjrtError> {
        let size = self.ty.element.bytes(1);
        let (start, end) = (index.saturating_mul(size), index.saturating_add(1).saturating_mul(size));
        if end > self.ty.bytes() {
            return Err(PjrtError::Range { ty: self.ty.clone(), start, end });
        }
        let mut bytes = vec![0; size];
        self.counted(self.raw.read_part(start, &mut bytes), size)?;
        Ok(bytes)
    }

    /// Counts the bytes if a read was successful.
    fn counted(&self, read: Result<(), PjrtStatus>, bytes: usize) -> Result<(), PjrtError> {
        read.map_err(|status| PjrtError::failed(format!("read a tensor of type `{}`", self.ty), status))?;
        let downloaded = &self.client.0.downloaded;
        downloaded.set(downloaded.get() + bytes as u64);
        Ok(())
    }
}
