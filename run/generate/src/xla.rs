//! [`Xla`] is an executor for entry points that XLA has compiled.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;

use ops::{ElementType, TensorType};
use pjrt::{Client, Executable, PjrtArgument, PjrtBuffer, Placement};
use runtime::Transfers;
use trace::Signature;

use crate::GenerateError;
use crate::ahead::{Ahead, Expected, Passed};
use crate::device_tensor::{DeviceTensor, XlaBuffer};
use crate::executor::{CallArgument, Executor};

/// A program that XLA has compiled, with one executable per entry point and the weights on the devices.
pub struct Xla {
    client: Client,
    functions: HashMap<String, XlaFunction>,
    /// The decode call that Tracewright expects next.
    expected: RefCell<Option<Expected>>,
}

/// An entry point that XLA has compiled.
pub struct XlaFunction {
    /// The compiled entry point, which takes its arguments first, and then the weights.
    executable: Executable,
    /// The devices and the partitioning of each argument of the entry point.
    arguments: Vec<Placement>,
    weights: Vec<Rc<PjrtBuffer>>,
    /// The arguments and results of a decode call, or `None` if calls cannot start early.
    ahead: Option<Ahead>,
}

impl XlaFunction {
    /// Creates an entry point from the placement of each argument on the devices, and from the
    /// weights in the order of the executable's arguments. Several entry points can share a weight.
    pub fn new(
        executable: Executable,
        entry: &Signature,
        arguments: Vec<Placement>,
        weights: Vec<Rc<PjrtBuffer>>,
    ) -> Self {
        let is_single = arguments.iter().all(|placement| placement.devices().len() == 1);
        let ahead = Ahead::of(entry).filter(|_| is_single);
        Self { executable, arguments, weights, ahead }
    }

    /// Calls the executable with arguments that are on the devices.
    fn execute(&self, arguments: Vec<PjrtBuffer>) -> Result<Vec<PjrtBuffer>, GenerateError> {
        let mut passed: Vec<_> = arguments.into_iter().map(PjrtArgument::Donated).collect();
        passed.extend(self.weights.iter().map(|weight| PjrtArgument::Kept(weight)));
        Ok(self.executable.execute(passed)?)
    }
}

impl Xla {
    /// Creates an executor from named entry points, on devices of `client` with their weights.
    pub fn new(client: &Client, functions: HashMap<String, XlaFunction>) -> Self {
        Self { client: client.clone(), functions, expected: RefCell::new(None) }
    }

    /// Moves an argument to the expected devices, with a copy if devices or partitioning differ.
    fn placed(&self, placement: &Placement, buffer: XlaBuffer) -> Result<PjrtBuffer, GenerateError> {
        Ok(match buffer {
            XlaBuffer::Zeros(ty) => self.client.zeros(placement, &ty)?,
            XlaBuffer::Host(ty, bytes) => self.client.upload(placement, &ty, &bytes)?,
            XlaBuffer::Devices(tensor) => match tensor.take()? {
                buffer if buffer.placement() == placement => buffer,
                buffer => self.client.upload(placement, buffer.ty(), &buffer.read()?)?,
            },
        })
    }
}

impl Executor for Xla {
    type Buffer = XlaBuffer;

    fn zeros(&self, ty: &TensorType) -> Result<XlaBuffer, GenerateError> {
        Ok(XlaBuffer::Zeros(ty.clone()))
    }

    fn upload(&self, ty: &TensorType, bytes: &[u8]) -> Result<XlaBuffer, GenerateError> {
        Ok(XlaBuffer::Host(ty.clone(), bytes.to_vec()))
    }

    fn read(&self, buffer: &XlaBuffer) -> Result<Vec<u8>, GenerateError> {
        Ok(match buffer {
            XlaBuffer::Zeros(ty) => vec![0; ty.bytes()],
            XlaBuffer::Host(_, bytes) => bytes.clone(),
            XlaBuffer::Devices(tensor) => tensor.bytes()?,
        })
    }

    fn copy(&self, _: &TensorType, buffer: &XlaBuffer) -> Result<XlaBuffer, GenerateError> {
        Ok(match buffer {
            XlaBuffer::Zeros(ty) => XlaBuffer::Zeros(ty.clone()),
            XlaBuffer::Host(ty, bytes) => XlaBuffer::Host(ty.clone(), bytes.clone()),
            XlaBuffer::Devices(tensor) => on_devices(tensor.with(PjrtBuffer::copied)?),
        })
    }

    fn copied_rows(
        &self,
        buffer: &XlaBuffer,
        ty: &TensorType,
        first: usize,
    ) -> Result<XlaBuffer, GenerateError> {
        Ok(match buffer {
            XlaBuffer::Zeros(_) => XlaBuffer::Zeros(ty.clone()),
            XlaBuffer::Devices(tensor) if !placement_of(tensor)?.divides_rows() => {
                on_devices(tensor.with(|buffer| buffer.rows(first, ty.shape[0]))?)
            }
            buffer => {
                let range = byte_range(ty, first);
                XlaBuffer::Host(ty.clone(), self.read_range(buffer, range)?)
            }
        })
    }

    fn put_rows(
        &self,
        ty: &TensorType,
        buffer: XlaBuffer,
        first: usize,
        rows: XlaBuffer,
    ) -> Result<XlaBuffer, GenerateError> {
        let placement = match (&buffer, &rows) {
            (XlaBuffer::Devices(tensor), _) | (_, XlaBuffer::Devices(tensor)) => Some(placement_of(tensor)?),
            _ => None,
        };
        let Some(placement) = placement.filter(|placement| !placement.divides_rows()) else {
            let mut bytes = self.read(&buffer)?;
            let rows = self.read(&rows)?;
            bytes[ty.with_rows(first).bytes()..][..rows.len()].copy_from_slice(&rows);
            return self.upload(ty, &bytes);
        };
        let rows = self.placed(&placement, rows)?;
        let whole = self.placed(&placement, buffer)?;
        Ok(on_devices(whole.put_rows(first, &rows)?))
    }

    fn read_element(&self, buffer: &XlaBuffer, index: usize) -> Result<Vec<u8>, GenerateError> {
        Ok(match buffer {
            XlaBuffer::Zeros(ty) => vec![0; ty.element.bytes(1)],
            XlaBuffer::Host(ty, bytes) => {
                let size = ty.element.bytes(1);
                bytes[index * size..][..size].to_vec()
            }
            XlaBuffer::Devices(tensor) => tensor.with(|buffer| buffer.read_element(index))?,
        })
    }

    fn transfers(&self) -> Transfers {
        let (host_to_device, device_to_host) = self.client.transferred();
        Transfers { host_to_device, device_to_host }
    }

    fn is_in_host_memory(&self) -> bool {
        false
    }

    fn call(
        &self,
        entry: &str,
        arguments: Vec<CallArgument<XlaBuffer>>,
    ) -> Result<Vec<XlaBuffer>, GenerateError> {
        let Some(function) = self.functions.get(entry) else {
            return Err(GenerateError::EntryPoint {
                name: entry.into(),
                why: "is missing in the program".into(),
            });
        };
        let expected = self.expected.take();
        let ahead = function.ahead.as_ref();
        let passed = ahead.and_then(|ahead| Some((ahead, Passed::of(ahead, &arguments)?)));
        let expected =
            expected.filter(|expected| passed.as_ref().is_some_and(|(_, passed)| expected.is(entry, passed)));
        let goes_on = expected.is_some();
        let results = match expected.and_then(|expected| expected.results) {
            Some(results) => results,
            None => {
                let placed = arguments.into_iter().zip(&function.arguments);
                let placed = placed.map(|(argument, placement)| self.passed(argument, placement));
                let results = function.execute(placed.collect::<Result<_, _>>()?)?;
                results.into_iter().map(DeviceTensor::new).collect()
            }
        };
        if let Some((ahead, passed)) = passed
            && let Some(start) = passed.next(ahead)
        {
            let states = ahead.states.iter().map(|&(_, result)| results[result].clone()).collect();
            let (entry, token) = (entry.to_owned(), results[ahead.token].clone());
            let Passed { count, extended, .. } = passed;
            let mut next = Expected { entry, start, count, extended, states, token, results: None };
            // If the last token was the most likely token, the next token probably is the most
            // likely token, too. So the next call starts now.
            if goes_on {
                next.results = Some(self.started(function, ahead, &next)?);
            }
            self.expected.replace(Some(next));
        }
        Ok(results.into_iter().map(XlaBuffer::Devices).collect())
    }
}

impl Xla {
    fn passed(
        &self,
        argument: CallArgument<XlaBuffer>,
        placement: &Placement,
    ) -> Result<PjrtBuffer, GenerateError> {
        let buffer = match argument {
            CallArgument::Buffer(buffer) => buffer,
            CallArgument::Scalar(number) => {
                self.upload(&TensorType::new(ElementType::I32, []), &number.to_le_bytes())?
            }
        };
        self.placed(placement, buffer)
    }

    /// Starts a call with the most likely tokens, which replaces the state on the device.
    fn started(
        &self,
        function: &XlaFunction,
        ahead: &Ahead,
        next: &Expected,
    ) -> Result<Vec<DeviceTensor>, GenerateError> {
        let numbers = |numbers: &[i32]| {
            let bytes = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
            XlaBuffer::Host(ahead.numbers.clone(), bytes)
        };
        let mut arguments = Vec::with_capacity(function.arguments.len());
        for (index, placement) in function.arguments.iter().enumerate() {
            let state = ahead.states.iter().position(|&(argument, _)| argument == index);
            arguments.push(match state {
                Some(state) => next.states[state].take()?,
                None if index == ahead.tokens => next.token.with(|token| token.reshaped(ahead.ty.clone()))?,
                None if index == ahead.start => self.placed(placement, numbers(&next.start))?,
                None if ahead.extended == Some(index) => self.placed(placement, numbers(&next.extended))?,
                None => self.placed(placement, numbers(&next.count))?,
            });
        }
        Ok(Expected::started(function.execute(arguments)?, ahead, &next.states))
    }
}

fn on_devices(buffer: PjrtBuffer) -> XlaBuffer {
    XlaBuffer::Devices(DeviceTensor::new(buffer))
}

fn placement_of(tensor: &DeviceTensor) -> Result<Placement, GenerateError> {
    tensor.with(|buffer| Ok::<_, GenerateError>(buffer.placement().clone()))
}

/// The byte range of consecutive rows from `first` on; `ty` is the type of only these rows.
fn byte_range(ty: &TensorType, first: usize) -> Range<usize> {
    let offset = ty.with_rows(first).bytes();
    offset..offset + ty.bytes()
}
