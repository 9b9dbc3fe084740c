//! The built-in leaves, such as [`Linear`]. A leaf is a field that contains weights.

use std::marker::PhantomData;
use std::panic::Location;
use std::rc::Rc;

use ops::ops::{Gather, Linear as LinearOp, Reshape, RmsNorm as RmsNormOp, WeightStyle};
use ops::{ElementType, InferError, Real, TensorType};
use trace::{AxisName, Parameter, joined_axis};

use crate::element::{Element, F32, Float, I32};
use crate::tensor::{Place, Raw, axes, extents, fail_extents, permuted};
use crate::tracer::{self, Tracer};
use crate::{Dim, NamedType, Scope, Tensor, TraceErrorKind};

/// The trait of leaves that you can apply with `self.field(x)`.
pub trait Call<Argument> {
    /// The type of the tensor that the leaf returns.
    type Output;
    /// Applies the leaf to its argument.
    fn call(&self, argument: Argument) -> Self::Output;
}

/// `path` is for messages, `home` the checkpoint's prefix. They differ if the weight is tied.
#[derive(Clone, Debug)]
struct WeightPath {
    path: Rc<str>,
    home: Rc<str>,
}

impl WeightPath {
    fn new(scope: Scope) -> Self {
        Self { path: scope.path().clone(), home: scope.path().clone() }
    }

    /// Reads a weight. Each item of `held` lists axes that the checkpoint merges into one axis of the weight.
    fn read(&self, t: &mut Tracer, name: &str, element: ElementType, held: &[&[Dim]], place: Place) -> Raw {
        let parameter = Parameter::new(self.key(name), TensorType::new(element, held_extents(held)));
        t.parameter(&self.path, parameter, &held_axes(held), place)
    }

    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.home)
    }
}

/// The extents of the weight's axes. Each item of `held` lists axes that the checkpoint merges into one axis.
fn held_extents(held: &[&[Dim]]) -> Vec<usize> {
    held.iter().map(|dims| merged(dims).extent).collect()
}

/// The names of the weight's axes. Each item of `held` lists axes that the checkpoint merges into one axis.
fn held_axes(held: &[&[Dim]]) -> Vec<AxisName> {
    let named = |dims: &&[Dim]| -> Vec<_> { dims.iter().map(|d| (d.axis.0, d.extent)).collect() };
    held.iter().map(|dims| joined_axis(&named(dims))).collect()
}

/// Reports the error in `parameter`.
fn made(
    t: &mut Tracer,
    path: &Rc<str>,
    parameter: Result<Parameter, InferError>,
    held: &[&[Dim]],
    place: Place,
) -> Raw {
    match parameter {
        Ok(parameter) => t.parameter(path, parameter, &held_axes(held), place),
        Err(error) => t.fail(error, place),
    }
}

/// A linear layer with an optional bias (`nn.Linear` in PyTorch). The checkpoint stores the weight
/// `[outputs…, inputs…]` as a matrix. The layer replaces the argument's input axes by the output axes.
///
/// Some checkpoints store the matrix with the input axes first, for example checkpoints of GPT-2 (`Conv1D`)
/// and of most JAX models. Call [`transposed`](Self::transposed) for a checkpoint that stores the input axes
/// first. The shape of a square matrix does not reveal the order of the axes. If you set `transposed`
/// wrongly, a square matrix loads without an error, but the results are wrong.
#[derive(Clone, Debug)]
pub struct Linear<T: Float> {
    stored: WeightPath,
    inputs: Vec<Dim>,
    outputs: Vec<Dim>,
    bias: bool,
    transposed: bool,
    of: PhantomData<T>,
}

impl<T: Float> Linear<T> {
    /// Creates a layer from the axes `inputs` to the axes `outputs`.
    pub fn build(scope: Scope, inputs: &[Dim], outputs: &[Dim]) -> Self {
        let (inputs, outputs) = (inputs.to_vec(), outputs.to_vec());
        let (stored, of) = (WeightPath::new(scope), PhantomData);
        Self { stored, inputs, outputs, bias: false, transposed: false, of }
    }

    /// Sets whether the layer has a bias `[outputs…]`. By default, the layer has no bias.
    pub fn bias(self, bias: bool) -> Self {
        Self { bias, ..self }
    }

    /// As `[inputs…, outputs…]` in the checkpoint; the archive always has outputs first.
    pub fn transposed(self, transposed: bool) -> Self {
        Self { transposed, ..self }
    }

    /// Ties this layer to the leaf at the path `home`, so the two leaves share one weight.
    pub fn tied(mut self, home: Scope) -> Self {
        self.stored.home = home.path().clone();
        self
    }
}

impl<T: Float> Call<Tensor<T>> for Linear<T> {
    type Output = Tensor<T>;

    #[track_caller]
    fn call(&self, x: Tensor<T>) -> Tensor<T> {
        let place = Location::caller();
        x.apply(place, |t, raw, ty| self.apply(t, raw, ty, place))
    }
}

/// In a matrix; its extent is the product.
fn merged(dims: &[Dim]) -> Dim {
    match dims {
        [one] => *one,
        _ => Dim { axis: crate::Axis("_"), extent: dims.iter().map(|d| d.extent).product() },
    }
}

impl<T: Float> Linear<T> {
    fn apply(&self, t: &mut Tracer, x: Raw, ty: NamedType, place: Place) -> Raw {
        let path = Some(&self.stored.path);
        if let Some(missing) = self.inputs.iter().find(|d| ty.position(d.axis).is_none()) {
            return t.fail(TraceErrorKind::NoAxis { op: "linear", axis: missing.axis, ty }, place);
        }
        if let Some(d) = self.inputs.iter().find(|d| !ty.dims.contains(d)) {
            let right = NamedType { element: T::element(), dims: self.inputs.clone() };
            return fail_extents(t, "linear", d.axis, &[x], (ty, right), place);
        }
        let rest: Vec<Dim> = ty.dims.iter().filter(|d| !self.inputs.contains(d)).copied().collect();
        if let Some(d) = self.outputs.iter().find(|d| rest.iter().any(|r| r.axis == d.axis)) {
            return t.fail(TraceErrorKind::Repeated { op: "linear", axis: d.axis, ty }, place);
        }
        // Merges the input axes into a last axis, multiplies, and splits the result into the output axes.
        let with = |dims: &[Dim]| [&rest[..], dims].concat();
        let x = permuted(t, x, ty, &axes(&with(&self.inputs)), place);
        let (input, output) = (merged(&self.inputs), merged(&self.outputs));
        let x = reshaped(t, path, x, &with(&self.inputs), &with(&[input]), place);
        let held = [&self.outputs[..], &self.inputs];
        let weight = if self.transposed {
            let ty = TensorType::new(T::element(), held_extents(&held));
            let weight = Parameter::transposed(self.stored.key("weight"), ty);
            made(t, &self.stored.path, weight, &held, place)
        } else {
            self.stored.read(t, "weight", T::element(), &held, place)
        };
        let mut operands = vec![x, weight];
        if self.bias {
            operands.push(self.stored.read(t, "bias", T::element(), &held[..1], place));
        }
        let product = t.op(path, LinearOp {}, &operands, &axes(&with(&[output])), place);
        reshaped(t, path, product, &with(&[output]), &with(&self.outputs), place)
    }
}

/// The number of elements stays.
fn reshaped(t: &mut Tracer, path: Option<&Rc<str>>, raw: Raw, from: &[Dim], to: &[Dim], place: Place) -> Raw {
    if from == to { raw } else { t.op(path, Reshape { shape: extents(to) }, &[raw], &axes(to), place) }
}

/// A table `[V, D]` of embeddings. Each token id selects a row of the table (`nn.Embedding` in PyTorch).
#[derive(Clone, Debug)]
pub struct Embedding<T: Float> {
    stored: WeightPath,
    dims: Vec<Dim>,
    of: PhantomData<T>,
}

impl<T: Float> Embedding<T> {
    /// Creates an embedding table with the axes `dims`. The first axis is the axis of the table's rows.
    pub fn build(scope: Scope, dims: &[Dim]) -> Self {
        Self { stored: WeightPath::new(scope), dims: dims.to_vec(), of: PhantomData }
    }

    /// Ties this table to the leaf at the path `home`, so the two leaves share one weight.
    pub fn tied(mut self, home: Scope) -> Self {
        self.stored.home = home.path().clone();
        self
    }
}

impl<T: Float> Call<Tensor<I32>> for Embedding<T> {
    type Output = Tensor<T>;

    #[track_caller]
    fn call(&self, ids: Tensor<I32>) -> Tensor<T> {
        let place = Location::caller();
        ids.apply(place, |t, raw, ty| {
            let row = self.dims.get(1..).unwrap_or_default();
            let held: Vec<&[Dim]> = self.dims.chunks(1).collect();
            let table = self.stored.read(t, "weight", T::element(), &held, place);
            let dims = [&ty.dims[..], row].concat();
            t.op(Some(&self.stored.path), Gather {}, &[table, raw], &axes(&dims), place)
        })
    }
}

/// x / √(mean(x²) + ε) · weight over one axis or several together (Zhang and Sennrich, 2019); weight `[D]`.
#[derive(Clone, Debug)]
pub struct RmsNorm<T: Float> {
    stored: WeightPath,
    dims: Vec<Dim>,
    epsilon: f64,
    style: WeightStyle,
    of: PhantomData<T>,
}

impl<T: Float> RmsNorm<T> {
    /// Creates an RMS norm over all axes in `dims`.
    pub fn build(scope: Scope, dims: &[Dim]) -> Self {
        let style = WeightStyle::Scale;
        Self { stored: WeightPath::new(scope), dims: dims.to_vec(), epsilon: 1e-6, style, of: PhantomData }
    }

    /// Sets ε, which the norm adds to the mean square. The default is 1e-6.
    pub fn eps(self, epsilon: f64) -> Self {
        Self { epsilon, ..self }
    }

    /// Sets how the norm applies the weight. The default is [`WeightStyle::Scale`].
    pub fn style(self, style: WeightStyle) -> Self {
        Self { style, ..self }
    }
}

fn axes_last(
    t: &mut Tracer,
    op: &'static str,
    raw: Raw,
    ty: NamedType,
    dims: &[Dim],
    place: Place,
) -> (Raw, Vec<Dim>) {
    let Some(missing) = dims.iter().find(|d| !ty.dims.contains(d)) else {
        let rest = ty.dims.iter().filter(|d| !dims.contains(d));
        let order: Vec<Dim> = rest.chain(dims).copied().collect();
        return (permuted(t, raw, ty, &axes(&order), place), order);
    };
    let failed = match ty.position(missing.axis) {
        None => t.fail(TraceErrorKind::NoAxis { op, axis: missing.axis, ty }, place),
        Some(_) => {
            let right = NamedType { element: ty.element, dims: dims.to_vec() };
            fail_extents(t, op, missing.axis, &[raw], (ty, right), place)
        }
    };
    (failed, Vec::new())
}

impl<T: Float> Call<Tensor<T>> for RmsNorm<T> {
    type Output = Tensor<T>;

    #[track_caller]
    fn call(&self, x: Tensor<T>) -> Tensor<T> {
        let place = Location::caller();
        x.apply(place, |t, raw, ty| {
            let back = axes(&ty.dims);
            let (raw, order) = axes_last(t, "rms_norm", raw, ty, &self.dims, place);
            let (path, one) = (Some(&self.stored.path), merged(&self.dims));
            let rest = &order[..order.len().saturating_sub(self.dims.len())];
            let flat = [rest, &[one]].concat();
            let raw = reshaped(t, path, raw, &order, &flat, place);
            let weight = self.stored.read(t, "weight", T::element(), &[&self.dims], place);
            let op = RmsNormOp { epsilon: Real(self.epsilon), style: self.style };
            let normed = t.op(path, op, &[raw, weight], &axes(&flat), place);
            let normed = reshaped(t, path, normed, &flat, &order, place);
            match t.named_type(normed, place) {
                Some(ty) => permuted(t, normed, ty, &back, place),
                None => normed,
            }
        })
    }
}

/// Over one axis, with weight and optional bias `[D]`, in f32 (Ba, Kiros and Hinton, "Layer Normalization",
/// 2016; `nn.LayerNorm` in PyTorch).
#[derive(Clone, Debug)]
pub struct LayerNorm<T: Float> {
    scale: Weight<T>,
    shift: Option<Weight<T>>,
    dims: Vec<Dim>,
    epsilon: f64,
}

impl<T: Float> LayerNorm<T> {
    /// Creates a layer norm over the single axis in `dims`.
    pub fn build(scope: Scope, dims: &[Dim]) -> Self {
        let scale = Weight::build(scope.child("weight"), dims);
        let shift = Some(Weight::build(scope.child("bias"), dims));
        Self { scale, shift, dims: dims.to_vec(), epsilon: 1e-5 }
    }

    /// Sets ε, which the norm adds to the variance. The default is 1e-5.
    pub fn eps(self, epsilon: f64) -> Self {
        Self { epsilon, ..self }
    }

    /// Sets whether the norm has a bias. By default, the norm has a bias.
    pub fn bias(mut self, bias: bool) -> Self {
        self.shift = self.shift.filter(|_| bias);
        self
    }
}

impl<T: Float> Call<Tensor<T>> for LayerNorm<T> {
    type Output = Tensor<T>;

    #[track_caller]
    fn call(&self, x: Tensor<T>) -> Tensor<T> {
        let Some(dim) = self.dims.first() else { return x };
        let wide = x.to::<F32>();
        let centred = wide - wide.mean(dim.axis);
        let variance = (centred * centred).mean(dim.axis);
        let normed = centred * (variance + self.epsilon).rsqrt() * self.scale.call(()).to::<F32>();
        match &self.shift {
            Some(shift) => (normed + shift.call(()).to::<F32>()).to(),
            None => normed.to(),
        }
    }
}

/// A tensor for the network's code. Its key is the field path, without a suffix such as `.weight`.
#[derive(Clone, Debug)]
pub struct Weight<T: Element> {
    path: Rc<str>,
    dims: Vec<Dim>,
    stacked: bool,
    of: PhantomData<T>,
}

impl<T: Element> Weight<T> {
    /// Creates a weight with the axes `dims`.
    pub fn build(scope: Scope, dims: &[Dim]) -> Self {
        Self { path: scope.path().clone(), dims: dims.to_vec(), stacked: false, of: PhantomData }
    }

    /// Slices are tensors of the checkpoint, whose index replaces the last `*` of `experts.*.w1.weight`.
    pub fn stacked(scope: Scope, dims: &[Dim]) -> Self {
        Self { stacked: true, ..Self::build(scope, dims) }
    }
}

impl<T: Element> Call<()> for Weight<T> {
    type Output = Tensor<T>;

    #[track_caller]
    fn call(&self, (): ()) -> Tensor<T> {
        let place = Location::caller();
        let ty = TensorType::new(T::element(), extents(&self.dims));
        let parameter = if self.stacked {
            Parameter::stacked(&*self.path, ty)
        } else {
            Ok(Parameter::new(&*self.path, ty))
        };
        let held: Vec<&[Dim]> = self.dims.chunks(1).collect();
        let raw = tracer::with(|t| made(t, &self.path, parameter, &held, place));
        Tensor::new(raw.unwrap_or(Raw::POISON))
    }
}
