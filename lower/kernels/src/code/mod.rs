//! A small language, embedded in Rust, in which Tracewright's kernels are written. In the kernel language,
//! each value has a type, and a Rust closure emits the statements in the body of a loop. The output is MLIR
//! text in the dialects `arith`, `vector`, `memref`, `scf` and `llvm`. A type error in a kernel is a bug in
//! this crate, so the function that emits the faulty statement panics. A test generates the MLIR text of
//! every kernel, and so finds type errors.

mod buffer;
mod function;
mod value;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt::{self, Display, Write as _};
use std::ops::Range;

pub(crate) use function::Functions;
pub(crate) use value::reduce_each;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    F32,
    F16,
    Bf16,
    I32,
    I16,
    I8,
    I1,
}

impl Element {
    pub(crate) fn bits(self) -> usize {
        match self {
            Self::F32 | Self::I32 => 32,
            Self::F16 | Self::Bf16 | Self::I16 => 16,
            Self::I8 => 8,
            Self::I1 => 1,
        }
    }

    fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::Bf16)
    }

    fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::I32 => "i32",
            Self::I16 => "i16",
            Self::I8 => "i8",
            Self::I1 => "i1",
        }
    }
}

impl Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Type {
    Index,
    Scalar(Element),
    /// Lanes and element type.
    Vector(usize, Element),
}

impl Type {
    pub(crate) const fn lanes(lanes: usize, element: Element) -> Self {
        Self::Vector(lanes, element)
    }

    fn element(self) -> Option<Element> {
        match self {
            Self::Index => None,
            Self::Scalar(element) | Self::Vector(_, element) => Some(element),
        }
    }

    pub(crate) fn with_element(self, element: Element) -> Self {
        match self {
            Self::Vector(lanes, _) => Self::Vector(lanes, element),
            _ => Self::Scalar(element),
        }
    }

    pub(crate) fn bits(self) -> usize {
        match self {
            Self::Vector(lanes, element) => lanes * element.bits(),
            Self::Scalar(element) => element.bits(),
            Self::Index => 64,
        }
    }

    fn is_float(self) -> bool {
        self.element().is_some_and(Element::is_float)
    }
}

impl Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Index => f.write_str("index"),
            Self::Scalar(element) => f.write_str(element.name()),
            Self::Vector(lanes, element) => write!(f, "vector<{lanes}x{}>", element.name()),
        }
    }
}

const INDENT: &str = "        ";

/// The statements of a kernel that is being generated.
pub(crate) struct Code {
    text: RefCell<String>,
    /// SSA names, declared once at the kernel's beginning, because many constants slow the compiler down.
    constants: RefCell<BTreeMap<String, usize>>,
    /// SSA names of constant indices, by number.
    places: RefCell<BTreeMap<usize, usize>>,
    /// The values of statements that depend only on operands, by right-hand side; one scope per loop body.
    written: RefCell<Vec<BTreeMap<String, usize>>>,
    /// Local memory, allocated at the beginning: in a loop, each iteration would take more.
    scratch: RefCell<Vec<String>>,
    functions: RefCell<Functions>,
    next: Cell<usize>,
}

#[derive(Clone, Copy)]
pub(crate) struct Value<'k> {
    code: &'k Code,
    /// The SSA name of the value, such as `%7`, or `%7#1` for the second result of a statement.
    name: (usize, Option<usize>),
    ty: Type,
}

#[derive(Clone, Copy)]
pub(crate) struct Buffer<'k> {
    code: &'k Code,
    name: usize,
    /// `None` for an operand of a function.
    length: Option<usize>,
    element: Element,
}

impl Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name {
            (name, None) => write!(f, "%{name}"),
            (name, Some(index)) => write!(f, "%{name}#{index}"),
        }
    }
}

impl Display for Buffer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}", self.name)
    }
}

impl Code {
    pub(crate) fn new() -> Self {
        Self {
            text: RefCell::default(),
            constants: RefCell::default(),
            places: RefCell::default(),
            written: RefCell::new(vec![BTreeMap::new()]),
            scratch: RefCell::default(),
            functions: RefCell::default(),
            next: Cell::default(),
        }
    }

    /// Returns the statements, and the functions that they call.
    pub(crate) fn into_text(self) -> (String, Functions) {
        let named = self.constants.into_inner();
        let constants: BTreeMap<usize, String> =
            named.into_iter().map(|(right, name)| (name, right)).collect();
        let lines = constants.into_iter().map(|(name, right)| format!("{INDENT}%{name} = {right}\n"));
        let scratch = self.scratch.into_inner().into_iter().map(|line| format!("{INDENT}{line}\n"));
        (lines.chain(scratch).chain([self.text.into_inner()]).collect(), self.functions.into_inner())
    }

    fn line(&self, line: impl Display) {
        let deeper = "  ".repeat(self.written.borrow().len() - 1);
        // Writing to a string cannot fail.
        let _ = writeln!(self.text.borrow_mut(), "{INDENT}{deeper}{line}");
    }

    fn fresh(&self) -> usize {
        self.next.replace(self.next.get() + 1)
    }

    /// A statement that reads memory or processor state, so that its result can change between executions.
    fn read(&self, ty: Type, right: impl Display) -> Value<'_> {
        let name = self.fresh();
        self.line(format_args!("%{name} = {right}"));
        Value { code: self, name: (name, None), ty }
    }

    /// Emits a statement whose result depends only on the statement's operands.
    fn value(&self, ty: Type, right: impl Display) -> Value<'_> {
        let right = right.to_string();
        let before = self.written.borrow().iter().find_map(|body| body.get(&right).copied());
        if let Some(name) = before {
            return Value { code: self, name: (name, None), ty };
        }
        let value = self.read(ty, &right);
        if let Some(body) = self.written.borrow_mut().last_mut() {
            body.insert(right, value.name.0);
        }
        value
    }

    fn constant_value(&self, ty: Type, right: String) -> Value<'_> {
        let name = *self.constants.borrow_mut().entry(right).or_insert_with(|| self.fresh());
        Value { code: self, name: (name, None), ty }
    }

    fn indented(&self, body: impl FnOnce()) {
        self.written.borrow_mut().push(BTreeMap::new());
        body();
        self.written.borrow_mut().pop();
    }

    pub(crate) fn index(&self, n: usize) -> Value<'_> {
        let value = self.constant_value(Type::Index, format!("arith.constant {n} : index"));
        self.places.borrow_mut().insert(value.name.0, n);
        value
    }

    /// The same number in every lane.
    pub(crate) fn constant(&self, ty: Type, number: f64) -> Value<'_> {
        let mut text = if ty.is_float() { format!("{number:?}") } else { format!("{number}") };
        // MLIR requires a decimal point in floats.
        if ty.is_float() && !text.contains('.') {
            text = text.replacen('e', ".0e", 1);
        }
        match ty {
            Type::Vector(..) => self.constant_value(ty, format!("arith.constant dense<{text}> : {ty}")),
            _ => self.constant_value(ty, format!("arith.constant {text} : {ty}")),
        }
    }

    /// The index that selects this call's part of the work.
    pub(crate) fn workgroup(&self) -> Value<'_> {
        self.read(Type::Index, "stream.dispatch.workgroup.id[0] : index")
    }

    /// The memory of an operand or a result.
    pub(crate) fn binding(&self, index: usize, element: Element, length: usize) -> Buffer<'_> {
        let (zero, name) = (self.index(0), self.fresh());
        let buffer = Buffer { code: self, name, length: Some(length), element };
        self.line(format_args!(
            "%{name} = stream.binding.subspan %b{index}[{zero}] : !stream.binding -> {}",
            buffer.ty()
        ));
        buffer
    }

    /// Local memory aligned to a cache line. The compiler allows 32 KiB per kernel.
    pub(crate) fn scratch(&self, element: Element, length: usize) -> Buffer<'_> {
        let name = self.fresh();
        let buffer = Buffer { code: self, name, length: Some(length), element };
        // The code writes the generic MLIR syntax, because the short syntax has no place for the
        // alignment.
        self.scratch.borrow_mut().push(format!(
            "%{name} = \"memref.alloca\"() <{{alignment = 64 : i64, operandSegmentSizes = array<i32: 0, 0>}}> : () -> {}",
            buffer.ty()
        ));
        buffer
    }

    pub(crate) fn repeat<'k>(&'k self, range: Range<Value<'k>>, step: usize, body: impl FnOnce(Value<'k>)) {
        self.fold(range, step, &[], |at, _| {
            body(at);
            Vec::new()
        });
    }

    /// A loop that computes new values from those of the previous iteration.
    pub(crate) fn fold<'k>(
        &'k self,
        range: Range<Value<'k>>,
        step: usize,
        first: &[Value<'k>],
        body: impl FnOnce(Value<'k>, &[Value<'k>]) -> Vec<Value<'k>>,
    ) -> Vec<Value<'k>> {
        let step = self.index(step);
        let (group, at) = (self.fresh(), self.fresh());
        let at = Value { code: self, name: (at, None), ty: Type::Index };
        let carried: Vec<Value<'k>> =
            first.iter().map(|value| Value { name: (self.fresh(), None), ..*value }).collect();
        let types = first.iter().map(|value| value.ty.to_string()).collect::<Vec<_>>().join(", ");
        let (start, end) = (range.start, range.end);
        match first.len() {
            0 => self.line(format_args!("scf.for {at} = {start} to {end} step {step} {{")),
            n => {
                let pairs = carried.iter().zip(first).map(|(new, old)| format!("{new} = {old}"));
                self.line(format_args!(
                    "%{group}:{n} = scf.for {at} = {start} to {end} step {step} iter_args({}) -> ({types}) {{",
                    pairs.collect::<Vec<_>>().join(", ")
                ));
            }
        }
        self.indented(|| {
            let next = body(at, &carried);
            assert!(next.iter().map(|v| v.ty).eq(first.iter().map(|v| v.ty)), "a loop carries other types");
            if !next.is_empty() {
                let names = next.iter().map(Value::to_string).collect::<Vec<_>>().join(", ");
                self.line(format_args!("scf.yield {names} : {types}"));
            }
        });
        self.line("}");
        let result = |(index, value): (usize, &Value<'k>)| Value { name: (group, Some(index)), ..*value };
        first.iter().enumerate().map(result).collect()
    }

    /// Returns the `each` vectors of type `ty` that the body computes for each index below `count`, in the order
    /// of the indices. The body is in a loop, and local memory holds its vectors.
    pub(crate) fn collect<'k>(
        &'k self,
        (count, each): (usize, usize),
        ty: Type,
        body: impl FnOnce(Value<'k>) -> Vec<Value<'k>>,
    ) -> Vec<Value<'k>> {
        let (Type::Vector(lanes, element), 2..) = (ty, count) else { return body(self.index(0)) };
        let held = self.scratch(element, count * each * lanes);
        self.repeat(self.index(0)..self.index(count), 1, |i| {
            for (which, vector) in body(i).into_iter().enumerate() {
                held.store((i * each + which) * lanes, vector);
            }
        });
        (0..count * each).map(|i| held.load(self.index(i * lanes), ty)).collect()
    }

    /// Returns a function that reads one lane of a vector by an index at run time, from local memory.
    pub(crate) fn lanes<'k>(&'k self, vector: Value<'k>) -> impl Fn(Value<'k>) -> Value<'k> {
        let Type::Vector(lanes, element) = vector.ty else { unreachable!("only vectors have lanes") };
        let held = (lanes > 1).then(|| self.scratch(element, lanes));
        held.iter().for_each(|held| held.store(self.index(0), vector));
        move |lane| match held {
            Some(held) => held.load(lane, Type::Scalar(element)),
            None => vector.lane(0),
        }
    }

    /// Returns a vector with the numbers 0, 1, 2, … in its lanes.
    pub(crate) fn count(&self, ty: Type) -> Value<'_> {
        let Type::Vector(lanes, _) = ty else { unreachable!("only vectors have lanes") };
        self.numbers(ty, &(0..lanes).collect::<Vec<_>>())
    }

    pub(crate) fn numbers(&self, ty: Type, numbers: &[impl Display]) -> Value<'_> {
        let numbers = numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        self.constant_value(ty, format!("arith.constant dense<[{numbers}]> : {ty}"))
    }

    /// Loops over blocks of `length` items, the last maybe shorter; the body gets the first item and count.
    pub(crate) fn runs<'k>(&'k self, count: usize, length: usize, body: impl Fn(Value<'k>, usize)) {
        let whole = count / length * length;
        if whole > 0 {
            self.repeat(self.index(0)..self.index(whole), length, |at| body(at, length));
        }
        if whole < count {
            body(self.index(whole), count - whole);
        }
    }

    /// Loops over blocks of 16 numbers. The body gets the first index and the count of remaining numbers.
    pub(crate) fn chunks<'k>(&'k self, count: usize, body: impl Fn(Value<'k>, usize)) {
        self.fold_chunks(count, &[], |at, left, _| {
            body(at, left);
            Vec::new()
        });
    }

    /// [`chunks`](Self::chunks) that compute new values from those of the previous block.
    pub(crate) fn fold_chunks<'k>(
        &'k self,
        count: usize,
        first: &[Value<'k>],
        body: impl Fn(Value<'k>, usize, &[Value<'k>]) -> Vec<Value<'k>>,
    ) -> Vec<Value<'k>> {
        let whole = count / 16 * 16;
        let mut carried = first.to_vec();
        if whole > 0 {
            carried =
                self.fold(self.index(0)..self.index(whole), 16, first, |at, carried| body(at, 16, carried));
        }
        if whole < count {
            carried = body(self.index(whole), count - whole, &carried);
        }
        carried
    }

    /// Calls an instruction by its LLVM name.
    pub(crate) fn instruction<'k>(&'k self, name: &str, operands: &[Value<'k>], ty: Type) -> Value<'k> {
        let names = operands.iter().map(Value::to_string).collect::<Vec<_>>().join(", ");
        let types = operands.iter().map(|o| o.ty.to_string()).collect::<Vec<_>>().join(", ");
        self.read(ty, format_args!("llvm.call_intrinsic \"{name}\"({names}) : ({types}) -> {ty}"))
    }

    pub(crate) fn either<'k>(&'k self, condition: Value<'k>, yes: impl FnOnce(), no: impl FnOnce()) {
        self.line(format_args!("scf.if {condition} {{"));
        self.indented(yes);
        self.line("} else {");
        self.indented(no);
        self.line("}");
    }

    /// An instruction in Intel's notation, with operands `$0`, `$1`, …, which may access any memory.
    pub(crate) fn assembly(&self, instruction: &str, operands: &[Value<'_>]) {
        let registers = "r,".repeat(operands.len());
        let operands = self.words(operands);
        self.line(format_args!(
            "llvm.inline_asm has_side_effects asm_dialect = intel \"{instruction}\", \"{registers}~{{memory}}\" {operands} -> ()"
        ));
    }

    /// Hides how a value was computed, by an x86-64 register. Otherwise LLVM stores products before sums.
    pub(crate) fn opaque<'k>(&'k self, value: Value<'k>) -> Value<'k> {
        let ty = value.ty;
        let assembly =
            format_args!("llvm.inline_asm has_side_effects \"\", \"=x,0\" {value} : ({ty}) -> {ty}");
        self.value(ty, assembly)
    }

    /// Emits a compiler barrier: LLVM does not move memory accesses across the barrier.
    pub(crate) fn in_order(&self) {
        self.line("llvm.inline_asm has_side_effects \"\", \"~{memory}\" : () -> ()");
    }

    /// Emits a system call for Linux on x86-64, and returns the result of the system call.
    pub(crate) fn system_call<'k>(&'k self, number: usize, arguments: [Value<'k>; 2]) -> Value<'k> {
        let [first, second] = arguments;
        let operands = self.words(&[self.index(number), first, second]);
        let name = self.fresh();
        self.line(format_args!(
            "%{name} = llvm.inline_asm has_side_effects asm_dialect = intel \"syscall\", \
             \"={{rax}},{{rax}},{{rdi}},{{rsi}},~{{rcx}},~{{r11}},~{{memory}}\" {operands} -> i64"
        ));
        self.value(Type::Index, format_args!("arith.index_cast %{name} : i64 to index"))
    }

    /// Formats indices, with their types, as operands of an assembly instruction.
    fn words(&self, operands: &[Value<'_>]) -> String {
        let word = |operand: &Value<'_>| {
            let name = self.fresh();
            self.line(format_args!("%{name} = arith.index_cast {operand} : index to i64"));
            format!("%{name}")
        };
        let names = operands.iter().map(word).collect::<Vec<_>>().join(", ");
        format!("{names} : ({})", vec!["i64"; operands.len()].join(", "))
    }

    /// Returns a mask that selects the first `left` of 16 lanes; `None` if all 16 lanes are valid.
    pub(crate) fn mask(&self, left: usize) -> Option<Value<'_>> {
        (left < 16).then(|| self.first_lanes(self.index(left), 16))
    }

    pub(crate) fn first_lanes<'k>(&'k self, count: Value<'k>, lanes: usize) -> Value<'k> {
        let ty = Type::lanes(lanes, Element::I1);
        self.value(ty, format_args!("vector.create_mask {count} : {ty}"))
    }
}
