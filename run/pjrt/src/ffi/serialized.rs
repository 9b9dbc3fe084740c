//! Stores and loads executables as bytes.

use std::rc::Rc;

use super::{RawClient, RawExecutable, abi, list};
use crate::error::PjrtStatus;

impl RawClient {
    /// `None` if the plugin cannot load executables from bytes.
    pub fn deserialize(self: &Rc<Self>, bytes: &[u8]) -> Option<Result<RawExecutable, PjrtStatus>> {
        let entry = &self.library.table.executable_deserialize_and_load;
        entry.function?;
        let mut args = abi::DeserializeAndLoad::new();
        (args.client, args.bytes, args.num_bytes) = (self.raw, bytes.as_ptr().cast(), bytes.len());
        // SAFETY: the client is alive, and the bytes outlive the call. No compile options replace the stored options.
        let loaded = unsafe { self.library.call(entry, &mut args) };
        Some(loaded.map(|()| RawExecutable { client: self.clone(), raw: args.loaded }))
    }
}

impl RawExecutable {
    /// Copies the executable into bytes. Returns `None` if the plugin cannot store executables as bytes.
    pub fn serialize(&self) -> Option<Result<Vec<u8>, PjrtStatus>> {
        let (library, table) = (self.library(), &self.library().table);
        table.executable_serialize.function?;
        let mut of = abi::LoadedGetExecutable::new();
        of.loaded = self.raw;
        // SAFETY: the executable is alive.
        let described = unsafe { library.call(&table.loaded_executable_get_executable, &mut of) };
        Some(described.and_then(|()| {
            let mut args = abi::ExecutableSerialize::new();
            args.executable = of.executable;
            // SAFETY: the object that describes the executable is alive until it is destroyed below. The bytes are alive
            // until `delete` frees them, which is called once.
            let bytes = unsafe {
                library.call(&table.executable_serialize, &mut args).map(|()| {
                    let bytes = list(args.bytes.cast(), args.num_bytes).to_vec();
                    if let Some(delete) = args.delete {
                        delete(args.serialized);
                    }
                    bytes
                })
            };
            let mut destroyed = abi::ExecutableDestroy::new();
            destroyed.executable = of.executable;
            // SAFETY: this function is the only owner of that object.
            unsafe { library.call(&table.executable_destroy, &mut destroyed) }?;
            bytes
        }))
    }
}
