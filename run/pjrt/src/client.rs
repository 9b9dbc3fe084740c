//! The safe interface of this crate: [`Plugin`], [`Client`], [`Executable`] and [`PjrtBuffer`].

mod moves;
mod serialized;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use ops::TensorType;

use crate::error::{PjrtError, PjrtStatus};
use crate::ffi::{Library, RawClient, RawDevice, RawExecutable, RawTensor};
use crate::options::XlaOptions;
use crate::placement::Placement;

/// The option that splits the processor into several devices, in the plugin for the CPU only.
const CPU_DEVICES: &str = "cpu_device_count";

/// `kMaxCpuDevicesPerProcess` in `xla/pjrt/plugin/xla_cpu/cpu_topology.h`.
const MOST_CPU_DEVICES: usize = 2048;

#[derive(Clone)]
pub struct Plugin {
    library: Rc<Library>,
    path: PathBuf,
}

/// Owns the devices of a plugin in this process, and all executables and tensors on them. Clones are the same
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
    helpers: RefCell<Helpers>,
}

/// Compiled modules that create, copy and change tensors, by text and devices.
type Helpers = HashMap<(String, Range<usize>), Rc<RawExecutable>>;

/// As the plugin describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PjrtDevice {
    /// In the client's list of devices.
    pub ordinal: usize,
    /// XLA's own number.
    pub id: i32,
    /// The name of the device's hardware, such as `NVIDIA H100 80GB HBM3`.
    pub kind: String,
}

/// A compiled program. The program runs on one device, or is partitioned over several devices.
pub struct Executable {
    client: Client,
    raw: RawExecutable,
    devices: Range<usize>,
    /// Types of whole tensors, even if several devices store parts.
    results: Vec<(TensorType, Placement)>,
}

/// A tensor on one or more devices. Not `Clone`, because a call may reuse its memory.
pub struct PjrtBuffer {
    client: Client,
    /// One on each device of the placement.
    parts: Vec<RawTensor>,
    /// The type of the whole tensor.
    ty: TensorType,
    placement: Placement,
}

pub enum PjrtArgument<'a> {
    /// Consumed by the call. With the attribute `tf.aliasing_output` in the module, a result reuses its
    /// memory.
    Donated(PjrtBuffer),
    /// The call only reads the tensor, so you can use the tensor after the call.
    Kept(&'a PjrtBuffer),
}

impl Plugin {
    /// Load only plugins that you trust: their code runs in this process.
    pub fn load(path: &Path) -> Result<Self, PjrtError> {
        Ok(Self { library: Library::load(path)?, path: path.to_owned() })
    }

    /// Major and minor version of the plugin's PJRT API.
    pub fn version(&self) -> (i32, i32) {
        self.library.version
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Starts the plugin's platform in this process.
    pub fn client(&self) -> Result<Client, PjrtError> {
        self.start(None)
    }

    /// At least `devices` devices. The plugin for the CPU splits the processor into devices that share one
    /// memory.
    pub fn client_with(&self, devices: usize) -> Result<Client, PjrtError> {
        let client = self.client()?;
        let is_cpu = client.platform() == "cpu";
        let count = client.devices().count();
        match devices {
            _ if devices <= count => Ok(client),
            _ if is_cpu && devices <= MOST_CPU_DEVICES => {
                drop(client);
                self.start(Some((CPU_DEVICES, devices as i64)))
            }
            _ => Err(PjrtError::FewDevices {
                platform: client.platform().to_owned(),
                expected: devices,
                found: if is_cpu { MOST_CPU_DEVICES } else { count },
            }),
        }
    }

    fn start(&self, option: Option<(&str, i64)>) -> Result<Client, PjrtError> {
        let start = |status| PjrtError::Start { path: self.path.clone(), status };
        let raw = RawClient::new(&self.library, option).map_err(start)?;
        let described = |(ordinal, device): (usize, RawDevice)| {
            let (id, kind) = raw.described(device)?;
            Ok((device, PjrtDevice { ordinal, id, kind }))
        };
        let devices = raw.devices().and_then(|all| all.into_iter().enumerate().map(described).collect());
        let devices = devices.map_err(start)?;
        let platform = raw.platform().map_err(start)?;
        let platform_version = raw.platform_version().map_err(start)?;
        let (uploaded, downloaded, helpers) = Default::default();
        let inner = Inner { raw, platform, platform_version, devices, uploaded, downloaded, helpers };
        Ok(Client(Rc::new(inner)))
    }
}

impl Client {
    /// Returns the name of the platform, such as `cpu`, `cuda`, `rocm` or `tpu`.
    pub fn platform(&self) -> &str {
        &self.0.platform
    }

    /// In a format of each plugin's own.
    pub fn platform_version(&self) -> &str {
        &self.0.platform_version
    }

    pub fn devices(&self) -> impl Iterator<Item = &PjrtDevice> {
        self.0.devices.iter().map(|(_, device)| device)
    }

    /// Bytes copied to devices, and from devices.
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

    /// Compiles a StableHLO module for the devices with these indices. XLA partitions it over several, by the
    /// sharding of each argument and result in Shardy's syntax. Calls run its `main`.
    pub fn compile(
        &self,
        module: &str,
        devices: Range<usize>,
        options: &XlaOptions,
    ) -> Result<Executable, PjrtError> {
        let raw = self.compiled(module, devices.clone(), options)?;
        self.loaded(raw, devices, refused)
    }

    fn compiled(
        &self,
        module: &str,
        devices: Range<usize>,
        options: &XlaOptions,
    ) -> Result<RawExecutable, PjrtError> {
        let id = |ordinal| self.device(ordinal).map(|(_, device)| i64::from(device.id));
        let ids: Vec<i64> = devices.map(id).collect::<Result<_, _>>()?;
        self.0.raw.compile(module, &options.encode(&ids)).map_err(refused)
    }

    /// Asks the plugin for the types of the results. `refused` converts an error of the plugin.
    fn loaded(
        &self,
        raw: RawExecutable,
        devices: Range<usize>,
        refused: impl Fn(PjrtStatus) -> PjrtError,
    ) -> Result<Executable, PjrtError> {
        let types = raw.results().map_err(refused)?;
        let copies = Placement::copies(devices.clone());
        let known = |(index, ty): (usize, Option<TensorType>)| {
            ty.map(|ty| (ty, copies.clone())).ok_or(PjrtError::ResultType { index })
        };
        let results = types.into_iter().enumerate().map(known).collect::<Result<_, _>>()?;
        Ok(Executable { client: self.clone(), raw, devices, results })
    }

    /// Little-endian. Each device receives only its part.
    pub fn upload(
        &self,
        placement: &Placement,
        ty: &TensorType,
        bytes: &[u8],
    ) -> Result<PjrtBuffer, PjrtError> {
        if bytes.len() != ty.bytes() {
            let (expected, found) = (ty.bytes(), bytes.len());
            return Err(PjrtError::ByteCount { ty: ty.clone(), expected, found });
        }
        let local = placement.local(ty)?;
        let parts = placement.devices().enumerate();
        let parts = parts
            .map(|(place, ordinal)| self.upload_part(ordinal, &local, &placement.part(ty, bytes, place)?));
        let parts = parts.collect::<Result<_, _>>()?;
        Ok(PjrtBuffer { client: self.clone(), parts, ty: ty.clone(), placement: placement.clone() })
    }

    fn upload_part(&self, ordinal: usize, ty: &TensorType, bytes: &[u8]) -> Result<RawTensor, PjrtError> {
        let &(device, _) = self.device(ordinal)?;
        let sent = self.0.raw.upload(device, ty, bytes).ok_or(PjrtError::Element(ty.element))?;
        let sent =
            sent.map_err(|status| PjrtError::failed(format!("upload a tensor of type `{ty}`"), status))?;
        self.0.uploaded.set(self.0.uploaded.get() + bytes.len() as u64);
        Ok(sent)
    }
}

/// Converts the plugin's error about a module that XLA cannot compile.
fn refused(status: PjrtStatus) -> PjrtError {
    match PjrtError::failed("compile the module", status) {
        PjrtError::Failed { status, .. } => PjrtError::Compile(status),
        error => error,
    }
}

impl Executable {
    /// Whole tensors, and not parts on one device.
    pub fn results(&self) -> impl Iterator<Item = &TensorType> {
        self.results.iter().map(|(ty, _)| ty)
    }

    /// Must agree with the results' sharding in the module. By default, each device returns whole tensors.
    pub fn returning(mut self, placements: Vec<Placement>) -> Result<Self, PjrtError> {
        if placements.len() != self.results.len() {
            return Err(PjrtError::ResultCount { expected: placements.len(), found: self.results.len() });
        }
        for (index, (result, placement)) in self.results.iter_mut().zip(placements).enumerate() {
            let (expected, found) = (self.devices.clone(), placement.devices());
            if expected != found {
                return Err(PjrtError::OtherDevices { index, expected, found });
            }
            *result = (placement.whole(&result.0)?, placement);
        }
        Ok(self)
    }

    /// Can return before the program ends. Reading a result waits for the end, and returns the error of a
    /// failed call.
    pub fn execute(&self, arguments: Vec<PjrtArgument<'_>>) -> Result<Vec<PjrtBuffer>, PjrtError> {
        let mut kept = Vec::new();
        let mut passed: Vec<Vec<&RawTensor>> =
            self.devices.clone().map(|_| Vec::with_capacity(arguments.len())).collect();
        for (index, argument) in arguments.iter().enumerate() {
            let buffer = match argument {
                PjrtArgument::Donated(buffer) => buffer,
                PjrtArgument::Kept(buffer) => {
                    kept.push(index as i64);
                    buffer
                }
            };
            if !buffer.parts.iter().all(|part| part.belongs_to(&self.client.0.raw)) {
                return Err(PjrtError::OtherClient { index });
            }
            let (expected, found) = (self.devices.clone(), buffer.placement.devices());
            if expected != found {
                return Err(PjrtError::OtherDevices { index, expected, found });
            }
            passed.iter_mut().zip(&buffer.parts).for_each(|(list, part)| list.push(part));
        }
        let returned = self.raw.execute(&passed, &kept, self.results.len());
        let returned = returned.map_err(|status| PjrtError::failed("call the module", status))?;
        let mut of_devices: Vec<_> = returned.into_iter().map(Vec::into_iter).collect();
        let result = |(ty, placement): &(TensorType, Placement)| PjrtBuffer {
            client: self.client.clone(),
            parts: of_devices.iter_mut().filter_map(Iterator::next).collect(),
            ty: ty.clone(),
            placement: placement.clone(),
        };
        Ok(self.results.iter().map(result).collect())
    }
}

impl PjrtBuffer {
    pub fn ty(&self) -> &TensorType {
        &self.ty
    }

    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// Little-endian, each part from only one device.
    pub fn read(&self) -> Result<Vec<u8>, PjrtError> {
        let mut whole = vec![0; self.ty.bytes()];
        let mut part = vec![0; self.placement.local(&self.ty)?.bytes()];
        if part.len() == whole.len() {
            self.counted(self.parts[0].read(&mut whole), whole.len())?;
            return Ok(whole);
        }
        for place in self.placement.once() {
            self.counted(self.parts[place].read(&mut part), part.len())?;
            self.placement.put(&self.ty, &part, place, &mut whole)?;
        }
        Ok(whole)
    }

    /// Row-major `index`. Copies only the bytes of this element.
    pub fn read_element(&self, index: usize) -> Result<Vec<u8>, PjrtError> {
        let size = self.ty.element.bytes(1);
        let (start, end) = (index.saturating_mul(size), index.saturating_add(1).saturating_mul(size));
        if end > self.ty.bytes() {
            return Err(PjrtError::Range { ty: self.ty.clone(), start, end });
        }
        let (place, within) = self.placement.find(&self.ty, index)?;
        let mut bytes = vec![0; size];
        self.counted(self.parts[place].read_part(within * size, &mut bytes), size)?;
        Ok(bytes)
    }

    /// Adds the number of copied bytes to the client's counter, if a read from a device was successful.
    fn counted(&self, read: Result<(), PjrtStatus>, bytes: usize) -> Result<(), PjrtError> {
        read.map_err(|status| PjrtError::failed(format!("read a tensor of type `{}`", self.ty), status))?;
        let downloaded = &self.client.0.downloaded;
        downloaded.set(downloaded.get() + bytes as u64);
        Ok(())
    }
}
