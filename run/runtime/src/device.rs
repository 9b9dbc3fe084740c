//! Creates the devices that run programs.

use std::cell::Cell;
use std::rc::Rc;
use std::thread;

use targets::{DeviceKind, DeviceName};

use crate::error::RuntimeError;
use crate::{driver, ffi};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// Threads on this CPU, not pinned: pinned ones lose most of their speed when another process needs a
    /// core.
    LocalTask {
        /// The number of threads in the pool. The number 0 selects as many threads as this process may use.
        workers: usize,
    },
    LocalSync,
    /// Counts and times executed functions for [`Runtime::executed`], which makes them slower.
    Watched {
        /// The number of threads in the pool. The number 0 selects as many threads as this process may use.
        workers: usize,
    },
    /// Other than the CPU.
    Driver(DeviceName),
}

impl Device {
    /// For the CPU, a pool of `workers` threads; 0 for as many as this process may use.
    pub fn of(name: DeviceName, workers: usize) -> Self {
        match name.kind {
            DeviceKind::Cpu => Self::LocalTask { workers },
            _ => Self::Driver(name),
        }
    }
}

/// The number of bytes that this crate copied between the host and a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transfers {
    /// Bytes copied by [`Buffer::from_bytes`](crate::Buffer::from_bytes).
    pub host_to_device: u64,
    /// The number of bytes that this crate copied from the device to the host when reading buffers.
    pub device_to_host: u64,
}

/// A device, on which you can create buffers and load modules. A clone of a [`Runtime`] refers to
/// the same device.
///
/// You can use a [`Runtime`], and all objects that it creates, only on one thread, because IREE's
/// contexts do not support several threads. The device itself starts worker threads.
///
/// ```
/// use tracewright_runtime::{Device, Runtime, RuntimeError};
///
/// let two_threads = Runtime::new(Device::LocalTask { workers: 2 })?;
/// assert_eq!(two_threads.transfers().host_to_device, 0);
/// # Ok::<(), RuntimeError>(())
/// ```
#[derive(Clone)]
pub struct Runtime(Rc<Inner>);

struct Inner {
    raw: ffi::Runtime,
    watched: bool,
    transfers: Cell<Transfers>,
}

impl Runtime {
    pub fn new(device: Device) -> Result<Self, RuntimeError> {
        let watched = matches!(device, Device::Watched { .. });
        let workers = match device {
            Device::LocalTask { workers: 0 } | Device::Watched { workers: 0 } => {
                thread::available_parallelism().map_or(1, usize::from)
            }
            Device::LocalTask { workers } | Device::Watched { workers } => workers,
            Device::LocalSync => 0,
            Device::Driver(name) => return Self::open(name),
        };
        let raw = ffi::Runtime::new(workers, watched).map_err(RuntimeError::Device)?;
        Ok(Self::of(raw, watched))
    }

    fn open(name: DeviceName) -> Result<Self, RuntimeError> {
        let DeviceName { kind, ordinal } = name;
        match ffi::Runtime::open(driver::code(kind)?, ordinal) {
            Ok(raw) => Ok(Self::of(raw, false)),
            // That there is none of this number says more than what IREE made of the number.
            Err(status) => Err(driver::device(name).err().unwrap_or(driver::does_not_start(kind, status))),
        }
    }

    fn of(raw: ffi::Runtime, watched: bool) -> Self {
        Self(Rc::new(Inner { raw, watched, transfers: Cell::default() }))
    }

    /// Returns the number of bytes that were copied to and from this device so far.
    pub fn transfers(&self) -> Transfers {
        self.0.transfers.get()
    }

    pub(crate) fn raw(&self) -> &ffi::Runtime {
        &self.0.raw
    }

    pub(crate) fn is_watched(&self) -> bool {
        self.0.watched
    }

    pub(crate) fn is(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }

    pub(crate) fn count(&self, host_to_device: usize, device_to_host: usize) {
        let Transfers { host_to_device: up, device_to_host: down } = self.transfers();
        self.0.transfers.set(Transfers {
            host_to_device: up + host_to_device as u64,
            device_to_host: down + device_to_host as u64,
        });
    }
}
