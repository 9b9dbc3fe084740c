//! Prints the text of a StableHLO module. The text is StableHLO with a source location for every
//! operation. The dialect determines how the module represents weights and large constants.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;

use kernels::Kernels;
use ops::{ElementType, Form, Literal, Operand, Statements, TensorType};
use targets::{Dialect, Target, Tiling, Unsupported};
use trace::{
    Function, FunctionId, NodeId, NodeKind, Parameter, Provenance, Read, Reads, Signature, Trace, resolve_key,
};

use crate::cuda::CudaCalls;
use crate::fusion::{Fusion, Fusions};
use crate::layout::Layouts;
use crate::legalize::{Legalization, legalize};
use crate::{LowerError, idiom};

/// If a constant has more bytes than this number, the module contains the constant only once, as a
/// global that all functions read.
const INLINE_BYTES: usize = 1024;

/// A program as the text of a StableHLO module.
///
/// ```
/// use targets::Target;
/// use trace::Trace;
/// use tracewright_lower::lower;
///
/// let trace: Trace = r#"entry @main {
///   %0 = input 0 "x" () : f32[2] from "" at "f.rs":1
///   %1 = binary kind=add (%0, %0) : f32[2] from "" at "f.rs":2
///   return %1 "y"
/// }
/// "#.parse()?;
/// let module = lower(&trace, &Target::host())?;
/// assert!(module.text.contains("stablehlo.add"));
/// assert_eq!(module.histogram()["add"], 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    /// The text of the module, for the compiler `iree-compile`.
    pub text: String,
    /// The text of the module without source locations. Equal programs have equal texts without
    /// locations, even if different source files declare the programs.
    pub text_without_locs: String,
    pub signatures: Vec<Signature>,
    /// The parameters of the module, sorted by key. The module reads its parameters from the IREE
    /// parameter scope `model`.
    pub parameters: Vec<Parameter>,
    /// The tilings from the target's tuning file that the kernels of the module use.
    pub tuned: BTreeMap<String, Tiling>,
}

/// A statement of a module, together with the place in the network that declares the node of the statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Statement<'a> {
    pub function: &'a str,
    pub text: &'a str,
    /// The source location of the statement, in the format of [`location`].
    pub location: &'a str,
}

impl Module {
    /// Returns every statement of the module that has a source location, in order.
    pub fn statements(&self) -> impl Iterator<Item = Statement<'_>> {
        let mut function = "";
        self.text.lines().zip(self.text_without_locs.lines()).filter_map(move |(line, text)| {
            if let Some((_, rest)) = line.strip_prefix("  func.func ").and_then(|rest| rest.split_once('@')) {
                function = rest.split('(').next().unwrap_or_default();
            }
            let location = line.strip_prefix(text)?.trim_start();
            (!location.is_empty()).then(|| Statement { function, text: text.trim_start(), location })
        })
    }

    /// Returns the number of times that each operation occurs in the text of the module. The number
    /// of occurrences of an operation does not depend on how often the module calls a function.
    pub fn histogram(&self) -> BTreeMap<String, usize> {
        let mut histogram = BTreeMap::new();
        for line in self.text_without_locs.lines() {
            let words = line.split_once(" = ").map(|(_, rhs)| rhs.trim_start_matches('"'));
            if let Some(op) = words.and_then(|rhs| rhs.strip_prefix("stablehlo.")) {
                let end = op.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(op.len());
                *histogram.entry(op[..end].to_owned()).or_insert(0) += 1;
            }
        }
        histogram
    }
}

/// Prints a trace of primitive operations as a StableHLO module, with legalizations for the
/// target's compiler.
pub fn lower(trace: &Trace, target: &Target) -> Result<Module, LowerError> {
    let legal = legalize(trace, &Legalization::needed(target))?;
    check_elements(&legal, target)?;
    write_with(&legal, target.backend.dialect(), Kernels::of(target), &Frame::default())
}

/// Returns an error if the trace has tensors with element types that the target does not support.
fn check_elements(trace: &Trace, target: &Target) -> Result<(), LowerError> {
    for function in &trace.functions {
        for id in function.ids() {
            let node = function.node(id);
            let computes = matches!(&node.kind, NodeKind::Op(ops::Op::Binary(_)));
            let against = |element: ElementType| -> Option<Unsupported> {
                let name = element.name();
                target.lacks(name).or_else(|| computes.then(|| target.miscounts(name)).flatten())
            };
            if let Some((element, lack)) =
                node.types.iter().find_map(|ty| Some((ty.element, against(ty.element)?)))
            {
                return Err(LowerError::Element {
                    function: function.name.clone(),
                    node: id.index(),
                    provenance: node.provenance.clone(),
                    element,
                    target: Box::new(target.clone()),
                    lack,
                });
            }
        }
    }
    Ok(())
}

/// Prints a trace of primitive operations as StableHLO, without legalizations. Each function that
/// is not an entry point becomes a private function, and takes its weights as arguments.
pub fn write(trace: &Trace, dialect: Dialect) -> Result<Module, LowerError> {
    write_with(trace, dialect, Kernels::none(), &Frame::default())
}

/// Contains the text around the functions of the module, and the attributes for the arguments and
/// results of the entry points.
pub(crate) struct Frame {
    pub name: String,
    pub attributes: String,
    pub before: String,
    /// The MLIR attributes of each argument of an entry point, except arguments that are weights.
    /// In the text of the module, the attributes follow the type of the argument.
    pub arguments: Vec<String>,
    /// The MLIR attributes of each weight, by the name of the weight. In the text of the module,
    /// the attributes follow the type of the weight.
    pub weights: HashMap<String, String>,
    /// The MLIR attributes of each result of an entry point. In the text of the module, the
    /// attributes follow the type of the result.
    pub results: Vec<String>,
    /// Whether the module requests the full precision of f32 for matmuls in f32. Without this request, XLA
    /// rounds the operands of f32 matmuls on accelerators: to TF32 on NVIDIA GPUs, and to bf16 on TPUs.
    pub exact: bool,
    /// Whether Tracewright's kernels for NVIDIA GPUs compute some of the operations.
    pub cuda: bool,
}

impl Default for Frame {
    fn default() -> Self {
        Self {
            name: "tracewright".into(),
            attributes: String::new(),
            before: String::new(),
            arguments: Vec::new(),
            weights: HashMap::new(),
            results: Vec::new(),
            exact: false,
            cuda: false,
        }
    }
}

pub(crate) fn write_with(
    trace: &Trace,
    dialect: Dialect,
    kernels: Kernels,
    frame: &Frame,
) -> Result<Module, LowerError> {
    let Reads { functions: reads, entries } = trace.reads()?;
    let weight = |Read { parameter, .. }| Weight { ty: parameter.ty.mlir(), key: parameter.key };
    let weights = reads.into_iter().map(|reads| reads.into_values().map(weight).collect()).collect();
    let parameters: Vec<Parameter> = entries.into_values().map(|read| read.parameter).collect();
    let rounds = !kernels.is_empty() && trace.functions.iter().any(multiplies);
    let (constants, globals) = (HashMap::new(), Vec::new());
    let mut writer = Writer { trace, dialect, weights, constants, globals, kernels, rounds, frame };
    let mut bodies = Vec::new();
    for (index, function) in trace.functions.iter().enumerate() {
        let entry = trace.entries.iter().any(|id| id.0 as usize == index);
        bodies.push(writer.function(function, index, entry)?);
    }
    let signatures = trace.entries.iter().map(|&id| trace.function(id).signature()).collect();
    let mut text = format!("module @{}{} {{\n{}", frame.name, frame.attributes, frame.before);
    let named = if dialect == Dialect::IreeGlobals { &parameters[..] } else { &[] };
    for Parameter { key, ty, .. } in named {
        let _ = writeln!(
            text,
            "  util.global private @\"{key}\" = #flow.parameter.named<\"model\"::\"{key}\"> : {}",
            ty.mlir()
        );
    }
    for (index, literal) in writer.globals.iter().enumerate() {
        let _ = writeln!(text, "  util.global private @constant{index} = {}", literal.mlir());
    }
    text.push_str(&writer.kernels.text());
    let mut text_without_locs = text.clone();
    let length = bodies.iter().map(Body::length).sum();
    text.reserve(length);
    text_without_locs.reserve(length);
    for body in &bodies {
        body.print(&mut text, &mut text_without_locs);
    }
    text.push_str("}\n");
    text_without_locs.push_str("}\n");
    let tuned = writer.kernels.tuned().clone();
    Ok(Module { text, text_without_locs, signatures, parameters, tuned })
}

struct Writer<'a> {
    trace: &'a Trace,
    dialect: Dialect,
    /// For each function of the module, the weights that the function takes as arguments. An entry
    /// point takes no weights as arguments, because an entry point loads its weights itself.
    weights: Vec<Vec<Weight>>,
    constants: HashMap<Literal, usize>,
    globals: Vec<Literal>,
    kernels: Kernels,
    /// Whether the module rounds every f16 and bf16 result to its element type. The rounding to the
    /// element type is necessary if kernels compute the matmuls.
    rounds: bool,
    frame: &'a Frame,
}

/// A weight that a function reads, and the MLIR type of the weight.
struct Weight {
    key: String,
    ty: String,
}

/// The text of a function in the module: the header, the statements with their locations, and the end.
struct Body {
    header: String,
    statements: Vec<(String, Provenance)>,
    end: String,
}

impl Body {
    /// The approximate number of bytes of the function's text.
    fn length(&self) -> usize {
        let statement = |(text, at): &(String, Provenance)| text.len() + at.path.len() + at.file.len() + 24;
        self.header.len() + self.statements.iter().map(statement).sum::<usize>() + self.end.len()
    }

    fn print(&self, text: &mut String, without_locs: &mut String) {
        text.push_str(&self.header);
        without_locs.push_str(&self.header);
        // Consecutive statements mostly come from the same place.
        let (mut place, mut location) = (None, String::new());
        for (statement, provenance) in &self.statements {
            if place.replace(provenance) != Some(provenance) {
                location = format!(" {}", self::location(provenance));
            }
            for part in ["    ", statement, &location, "\n"] {
                text.push_str(part);
            }
            for part in ["    ", statement, "\n"] {
                without_locs.push_str(part);
            }
        }
        text.push_str(&self.end);
        without_locs.push_str(&self.end);
    }
}

/// The location of a node in the text of a module, for example
/// `loc("model/layers.*/mlp"("models/src/llama.rs":51:0))`.
pub fn location(provenance: &Provenance) -> String {
    let Provenance { path, file, line } = provenance;
    format!("loc(\"{}\"(\"{file}\":{line}:0))", namespace(path))
}

/// Returns a field path with slashes between its levels, such as `model/layers.*/mlp`. Graph
/// viewers use the slashes of a field path to show the structure of the model.
pub fn namespace(path: &str) -> String {
    path.replace('.', "/").replace("/*", ".*")
}

/// The StableHLO statements of a function, with SSA names that are unique in the function.
struct Fresh<'f> {
    statements: Vec<(String, Provenance)>,
    /// The place that declares the node of the next statements.
    provenance: &'f Provenance,
    next: usize,
}

impl Fresh<'_> {
    /// Adds a statement, and returns the SSA name of its value.
    fn named(&mut self, results: &str, rhs: &str) -> String {
        let name = format!("%{}", self.next);
        self.next += 1;
        self.statements.push((format!("{name}{results} = {rhs}"), self.provenance.clone()));
        name
    }
}

impl Statements for Fresh<'_> {
    fn statement(&mut self, rhs: String) -> String {
        self.named("", &rhs)
    }

    fn group(&mut self, rhs: String, results: usize) -> String {
        self.named(&format!(":{results}"), &rhs)
    }
}

impl Writer<'_> {
    /// Whether the module contains a constant only once, as a global for all functions. If all elements of a
    /// constant are equal, the constant's text is short and the compiler folds the constant. Therefore the
    /// module repeats a constant with equal elements in every function that reads the constant.
    fn is_global(&self, literal: &Literal) -> bool {
        self.dialect == Dialect::IreeGlobals
            && literal.as_splat().is_none()
            && literal.ty().bytes() > INLINE_BYTES
    }

    /// Prints the arguments of a function. If the function does not load its weights, the weights
    /// are arguments too. If the weights are arguments, the method adds the names of the weights to
    /// `weight_names`.
    fn arguments(
        &self,
        signature: &Signature,
        index: usize,
        entry: bool,
        weight_names: &mut HashMap<String, String>,
    ) -> Vec<String> {
        let loads = entry && self.dialect == Dialect::IreeGlobals;
        let mut arguments = Vec::new();
        for (i, argument) in signature.arguments.iter().enumerate() {
            let ty = if loads && argument.is_host_scalar() { "i32".into() } else { argument.ty.mlir() };
            let said = self.frame.arguments.get(i).filter(|_| entry).map_or("", String::as_str);
            arguments.push(format!("%arg{i}: {ty}{said}"));
        }
        for (i, Weight { key, ty }) in self.weights[index].iter().enumerate().filter(|_| !loads) {
            let said = self.frame.weights.get(key).filter(|_| entry).map_or("", String::as_str);
            arguments.push(format!("%weight{i}: {ty}{said}"));
            weight_names.insert(key.clone(), format!("%weight{i}"));
        }
        arguments
    }

    fn function(&mut self, function: &Function, index: usize, entry: bool) -> Result<Body, LowerError> {
        let loads = entry && self.dialect == Dialect::IreeGlobals;
        let mut weight_names: HashMap<String, String> = HashMap::new();
        let signature = function.signature();
        let arguments = self.arguments(&signature, index, entry, &mut weight_names);
        let none = Provenance::new("", "", 0);
        let mut text = FunctionText {
            function,
            signature: &signature,
            loads,
            fusions: Fusions::of(function, &self.kernels),
            cuda: if self.frame.cuda {
                CudaCalls::of(function, &Layouts::new())
            } else {
                CudaCalls::default()
            },
            fresh: Fresh { statements: Vec::new(), provenance: &none, next: 0 },
            names: vec![String::new(); function.len()],
            weight_names,
            module: self,
        };
        text.nodes()?;
        let FunctionText { fresh, names, .. } = text;
        let results: Vec<String> = function.output_types().iter().map(|ty| ty.mlir()).collect();
        let returned: Vec<&str> = function.outputs.iter().map(|o| names[o.node.index()].as_str()).collect();
        let declared = results.iter().enumerate().map(|(i, ty)| {
            let said = self.frame.results.get(i).filter(|_| entry).map_or("", String::as_str);
            format!("{ty}{said}")
        });
        let declared = declared.collect::<Vec<_>>().join(", ");
        let visibility = if entry { "" } else { "private " };
        Ok(Body {
            header: format!(
                "  func.func {visibility}@{}({}) -> ({}) {{\n",
                function.name,
                arguments.join(", "),
                declared
            ),
            statements: fresh.statements,
            end: format!("    return {} : {}\n  }}\n", returned.join(", "), results.join(", ")),
        })
    }
}

/// The statements of one function, in the order of its nodes.
struct FunctionText<'w, 't, 'f> {
    module: &'w mut Writer<'t>,
    function: &'f Function,
    signature: &'f Signature,
    /// Whether the function loads its weights, and takes host scalars as numbers.
    loads: bool,
    fusions: Fusions<'f>,
    cuda: CudaCalls,
    fresh: Fresh<'f>,
    /// The name of each value. For a call, this is the name of the whole group of results.
    names: Vec<String>,
    weight_names: HashMap<String, String>,
}

impl<'f> FunctionText<'_, '_, 'f> {
    fn nodes(&mut self) -> Result<(), LowerError> {
        let function = self.function;
        // The text of a kernel call can precede the nodes of the weights that the kernel reads.
        for id in function.ids().filter(|_| self.module.frame.cuda) {
            if let NodeKind::Parameter(parameter) = &function.node(id).kind {
                self.names[id.index()] = self.weight_names.get(&parameter.key).cloned().unwrap_or_default();
            }
        }
        for id in function.ids() {
            self.fresh.provenance = &function.node(id).provenance;
            self.cuda_call(id);
            if self.fusions.within(id) || self.cuda.computes(id) {
                continue;
            }
            if let Some(fusion) = self.fusions.at(id) {
                self.fresh.provenance = &function.node(fusion.named).provenance;
            }
            if !self.in_parts(id) {
                self.names[id.index()] = self.node(id)?;
            }
        }
        Ok(())
    }

    fn node(&mut self, id: NodeId) -> Result<String, LowerError> {
        let node = self.function.node(id);
        Ok(match &node.kind {
            NodeKind::Input { index, .. } => self.input(*index),
            NodeKind::Parameter(Parameter { key, ty, .. }) => self.load(key, &ty.mlir()),
            NodeKind::Op(ops::Op::Constant(op)) if self.module.is_global(&op.value) => {
                self.constant(&op.value, node.ty())
            }
            NodeKind::Op(op) => self.operation(id, op)?,
            NodeKind::Call { function: callee, prefix } => self.call(id, *callee, prefix),
            NodeKind::Result { index } => {
                let call = self.function.operands(id)[0];
                match self.function.node(call).types.len() {
                    1 => self.names[call.index()].clone(),
                    _ => format!("{}#{index}", self.names[call.index()]),
                }
            }
        })
    }

    fn input(&mut self, index: usize) -> String {
        if self.loads && self.signature.arguments[index].is_host_scalar() {
            return self.fresh.statement(format!("tensor.from_elements %arg{index} : tensor<i32>"));
        }
        format!("%arg{index}")
    }

    /// Returns the SSA name of a weight. A function loads each weight only once.
    fn load(&mut self, key: &str, ty: &str) -> String {
        if let Some(name) = self.weight_names.get(key) {
            return name.clone();
        }
        let name = self.fresh.statement(format!("util.global.load immutable @\"{key}\" : {ty}"));
        self.weight_names.insert(key.to_owned(), name.clone());
        name
    }

    fn constant(&mut self, value: &Literal, ty: &TensorType) -> String {
        let Writer { constants, globals, .. } = &mut *self.module;
        let global = *constants.entry(value.clone()).or_insert_with(|| {
            globals.push(value.clone());
            globals.len() - 1
        });
        self.fresh.statement(format!("util.global.load immutable @constant{global} : {}", ty.mlir()))
    }

    fn values(&self, nodes: &[NodeId]) -> Vec<(String, &'f TensorType)> {
        nodes.iter().map(|o| (self.names[o.index()].clone(), self.function.node(*o).ty())).collect()
    }

    /// Writes the call of a kernel for NVIDIA GPUs that replaces a node.
    fn cuda_call(&mut self, id: NodeId) {
        let Some(call) = self.cuda.at(id) else { return };
        let values = self.values(&call.operands);
        let types: Vec<&TensorType> = call.results.iter().map(|&id| self.function.node(id).ty()).collect();
        let written = call.kernel.call(&mut self.fresh, &operands(&values), &types);
        for (result, name) in call.results.iter().zip(written) {
            self.names[result.index()] = name;
        }
    }

    /// Writes a linear attention whose new state and outputs are read separately. Returns false for
    /// other nodes.
    fn in_parts(&mut self, id: NodeId) -> bool {
        let (Some(fusion), Some(parts)) = (self.fusions.at(id), self.fusions.parts(id)) else { return false };
        let values = self.values(&fusion.operands);
        let written = self.module.kernels.call_in_parts(&mut self.fresh, &fusion.work, &operands(&values));
        for (nodes, name) in parts.iter().zip(written.into_iter().flatten()) {
            nodes.iter().for_each(|node| self.names[node.index()].clone_from(&name));
        }
        true
    }

    /// Writes an operation as its implementation defines it.
    fn operation(&mut self, id: NodeId, op: &ops::Op) -> Result<String, LowerError> {
        let (ty, fusion) = (self.function.node(id).ty(), self.fusions.at(id));
        let read = fusion.map_or_else(|| self.function.operands(id), |fusion| fusion.operands.clone());
        let values = self.values(&read);
        let (values, fresh) = (operands(&values), &mut self.fresh);
        let rhs = match (fusion, op.form()) {
            (Some(Fusion { work, .. }), _) => self.module.kernels.call(fresh, work, &values, ty),
            (None, Form::Idiom(idiom)) if self.module.dialect == Dialect::IreeGlobals => {
                Some(idiom::spell(fresh, idiom, &values, ty))
            }
            (None, _) => op.spell(fresh, &values, ty),
        };
        let mut rhs = rhs.ok_or_else(|| unspelled(self.function, id, op))?;
        let f32s = values.iter().all(|value| value.ty.element == ElementType::F32);
        if self.module.frame.exact && f32s && matches!(op, ops::Op::DotGeneral(_)) {
            rhs = rhs.replacen(" : (", ", precision = [HIGHEST, HIGHEST] : (", 1);
        }
        let value = fresh.statement(rhs);
        let rounds = fusion.is_none() && self.module.rounds;
        Ok(if rounds { rounded(fresh, value, op, ty) } else { value })
    }

    fn call(&mut self, id: NodeId, callee: FunctionId, prefix: &str) -> String {
        let target = self.module.trace.function(callee);
        let values = self.values(&self.function.operands(id));
        let mut values: Vec<(String, String)> =
            values.into_iter().map(|(name, ty)| (name, ty.mlir())).collect();
        for at in 0..self.module.weights[callee.0 as usize].len() {
            let Weight { key, ty } = &self.module.weights[callee.0 as usize][at];
            let (key, ty) = (resolve_key(key, &target.prefix, prefix), ty.clone());
            values.push((self.load(&key, &ty), ty));
        }
        call(&mut self.fresh, &target.name, &values, &self.function.node(id).types)
    }
}

fn operands<'a>(values: &'a [(String, &'a TensorType)]) -> Vec<Operand<'a>> {
    values.iter().map(|(name, ty)| Operand { name, ty }).collect()
}

/// Whether a function contains an operation that only kernels can compute.
fn multiplies(function: &Function) -> bool {
    let is_kernel = |id| matches!(&function.node(id).kind, NodeKind::Op(op) if op.form() == Form::Kernel);
    function.ids().any(is_kernel)
}

/// Emits statements that round a result to the element type of the result. IREE computes f16 and
/// bf16 numbers in f32, and rounds only those numbers that it stores in memory. The number of
/// tokens determines which numbers IREE stores in memory. If the module did not round every result,
/// the outputs would depend on the number of tokens.
fn rounded(fresh: &mut Fresh<'_>, value: String, op: &ops::Op, ty: &TensorType) -> String {
    use ops::Op::{Binary, Convert, DotGeneral, Reduce, Unary};
    let computes = matches!(op, Unary(_) | Binary(_) | Convert(_) | Reduce(_) | DotGeneral(_));
    if !computes || !matches!(ty.element, ElementType::F16 | ElementType::Bf16) {
        return value;
    }
    let steps: [(ops::Op, ElementType); 3] = [
        (ops::ops::Convert { to: ElementType::F32 }.into(), ty.element),
        (ops::ops::ReducePrecision { to: ty.element }.into(), ElementType::F32),
        (ops::ops::Convert { to: ty.element }.into(), ElementType::F32),
    ];
    steps.iter().fold(value, |value, (op, from)| {
        let from = ty.with_element(*from);
        let result = op.infer(&[&from]).unwrap_or_else(|_| from.clone());
        let rhs = op.spell(fresh, &[Operand { name: &value, ty: &from }], &result);
        rhs.map_or(value, |rhs| fresh.statement(rhs))
    })
}

/// The reason why the module cannot contain a statement for an operation.
fn unspelled(function: &Function, id: NodeId, op: &ops::Op) -> LowerError {
    let provenance = function.node(id).provenance.clone();
    let (function, node, name) = (function.name.clone(), id.index(), op.name());
    match op.form() {
        Form::Kernel => LowerError::Kernel { function, node, provenance, op: name },
        _ => LowerError::Composite { function, node, provenance, op: name },
    }
}

fn call(fresh: &mut Fresh<'_>, callee: &str, values: &[(String, String)], results: &[TensorType]) -> String {
    let names: Vec<&str> = values.iter().map(|(name, _)| name.as_str()).collect();
    let types: Vec<&str> = values.iter().map(|(_, ty)| ty.as_str()).collect();
    let results_text: Vec<String> = results.iter().map(TensorType::mlir).collect();
    let rhs = format!(
        "call @{callee}({}) : ({}) -> ({})",
        names.join(", "),
        types.join(", "),
        results_text.join(", ")
    );
    if results.len() == 1 {
        return fresh.statement(rhs);
    }
    fresh.group(rhs, results.len())
}
