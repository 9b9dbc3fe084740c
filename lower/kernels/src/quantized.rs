//! Activations that are quantized to integers of 8 bits or, in some or all groups of 32, of 16 bits. For
//! each group of 32 integers, the layout stores a scale and the sum of the integers.

use std::ops::{Add as _, Range};

use ops::format::{ActivationBits, GROUP, IGNORED_BITS, LARGEST_ACTIVATION, OUTLIER, RESIDUAL_STEPS};

use crate::code::{Buffer, Code, Element, Type, Value, reduce_each};
use crate::isa::tiles::LINE;
use crate::kernel::{self, Kernel};

/// The longest row that a matmul kernel quantizes itself, on the stack of a worker thread.
pub(crate) const LONGEST: usize = 16384;

/// The kind of sum that the layout stores for each group of activations.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sums {
    /// The sum of the activation bytes, multiplied by the factor in this variant, as i32. If the
    /// bytes of a weight are its integers minus the factor, the kernel starts the sums of products
    /// from the multiplied sum.
    Times(i32),
    /// The same sum for each half of the group, for weights with groups of 16.
    Halves(i32),
    /// The sum of the dequantized activations, as f32. The kernel multiplies the sum of a group of
    /// activations by the minimum of the weight group.
    Numbers,
    /// The same sum for each half of the group.
    HalfNumbers,
}

/// The layout of a quantized activation row with `inputs` numbers. A quantized row begins with its integers,
/// and zeros fill the last chunk of the row. After the integers, the row contains the scales of the groups as
/// f32, and then the sums of the groups. If activations can have more than 8 bits, each part of the row
/// exists twice. The first copy of a part belongs to the rounded activations. The second copy belongs to the
/// residuals, which are the rounding errors in smaller units. A group without residuals has the scale 0 in
/// the second part. In mixed activations, a list of the groups with residuals follows.
#[derive(Clone, Copy)]
pub(crate) struct Form {
    pub(crate) inputs: usize,
    pub(crate) bits: ActivationBits,
    /// The number of weight columns in a chunk of a panel.
    pub(crate) chunk: usize,
    pub(crate) sums: Sums,
}

impl Sums {
    pub(crate) fn name(self) -> String {
        match self {
            Self::Times(added) => format!("less{}", -added),
            Self::Halves(added) => format!("halves{}", -added),
            Self::Numbers => "sums".to_owned(),
            Self::HalfNumbers => "half_sums".to_owned(),
        }
    }

    fn per_group(self) -> usize {
        if matches!(self, Self::Halves(_) | Self::HalfNumbers) { 2 } else { 1 }
    }
}

/// Returns the end of the names of kernels that read or write activations with this number of bits.
pub(crate) fn bits_suffix(bits: ActivationBits) -> &'static str {
    match bits {
        ActivationBits::Eight => "",
        ActivationBits::Mixed => "_mixed",
        ActivationBits::Sixteen => "_16",
    }
}

/// The number of groups that the kernel quantizes together. To compute a maximum or a sum for each of
/// eight groups together takes half as many instructions as for one group after the other. A loop over the
/// groups computes what is added, so that the code is short.
const TOGETHER: usize = 8;

/// Consecutive groups of a row that the kernel quantizes together.
#[derive(Clone, Copy)]
struct Block {
    groups: usize,
    /// The number of numbers in each group. Only the last group of a row can have fewer than [`GROUP`].
    numbers: usize,
}

/// A row of activations that the kernel quantizes.
#[derive(Clone, Copy)]
struct Source<'k> {
    code: &'k Code,
    x: Buffer<'k>,
    /// The index of the row's first number.
    from: Value<'k>,
    form: Form,
    groups: Groups<'k>,
}

/// The groups of a row, in runs of blocks with equally many groups.
#[derive(Clone, Copy)]
struct Groups<'k> {
    /// The end of each run, and the number of groups in its blocks.
    runs: [Option<(Value<'k>, usize)>; 2],
    /// The index of the last group and its numbers, if these are fewer than [`GROUP`].
    rest: Option<(Value<'k>, usize)>,
}

impl<'k> Groups<'k> {
    fn of(code: &'k Code, form: Form) -> Self {
        let (whole, rest) = (form.inputs / GROUP, form.inputs % GROUP);
        let together = whole / TOGETHER * TOGETHER;
        let run = |range: Range<usize>, groups| (!range.is_empty()).then(|| (code.index(range.end), groups));
        let runs = [run(0..together, TOGETHER), run(together..whole, 1)];
        Self { runs, rest: (rest > 0).then(|| (code.index(whole), rest)) }
    }

    /// All groups of a row in one run.
    fn run(end: Value<'k>, groups: usize) -> Self {
        Self { runs: [Some((end, groups)), None], rest: None }
    }
}

/// The integers of a group, as two vectors of 16 integers, and the scale of the integers.
#[derive(Clone, Copy)]
pub(crate) struct Rounded<'k> {
    pub(crate) integers: [Value<'k>; 2],
    pub(crate) scale: Value<'k>,
}

impl Form {
    /// Returns a name that is different for each layout of quantized activations.
    pub(crate) fn name(self) -> String {
        let Self { inputs, bits, chunk, sums } = self;
        format!("{inputs}_by{chunk}_{}{}", sums.name(), bits_suffix(bits))
    }

    /// Returns the number of integers in a quantized row, including the padding integers and
    /// without the residuals.
    pub(crate) fn values(self) -> usize {
        self.inputs.next_multiple_of(self.chunk)
    }

    /// Returns the number of times that each part of a quantized row is there: 2 if the row has
    /// residuals, otherwise 1.
    fn planes(self) -> usize {
        if self.bits == ActivationBits::Eight { 1 } else { 2 }
    }

    fn groups(self) -> usize {
        self.values() / GROUP
    }

    pub(crate) fn bytes(self) -> usize {
        let list = match self.bits {
            ActivationBits::Mixed => (4 + 4 * self.groups()).next_multiple_of(LINE),
            ActivationBits::Eight | ActivationBits::Sixteen => 0,
        };
        self.list() + list
    }

    /// Returns the first byte of the list of the groups with residuals, in a row of mixed
    /// activations. The list begins with the number of groups.
    fn list(self) -> usize {
        self.planes() * (self.values() + (4 + 4 * self.sums.per_group()) * self.groups())
    }

    /// Quantizes the row of the activations x that begins at the index `from`, and calls `write` for
    /// each group of the row. The argument of `write` has one element for the rounded activations and,
    /// if the layout has residuals, one element for the residuals.
    pub(crate) fn quantize<'k>(
        self,
        code: &'k Code,
        (x, from): (Buffer<'k>, Value<'k>),
        write: impl Fn(Value<'k>, &[Rounded<'k>]),
    ) {
        let source = Source { code, x, from, form: self, groups: Groups::of(code, self) };
        let limit = source.limit(None);
        source.each(|first, block| {
            let largest = source.largest(first, block);
            let [inverses, scales] = source.factors(largest);
            let residual_scales = source.residual_scales(limit, largest, scales);
            for i in 0..block.groups {
                let group = first + i;
                let (units, integers) = source.rounded(group, block, inverses.lane(i));
                let mut parts = vec![Rounded { integers, scale: scales.lane(i) }];
                if self.planes() == 2 {
                    parts.push(Rounded { integers: residuals(units), scale: residual_scales.lane(i) });
                }
                write(group, &parts);
            }
        });
        for empty in self.padding() {
            let zeros = code.constant(Type::lanes(16, Element::I32), 0.0);
            let scale = code.constant(Type::Scalar(Element::F32), 0.0);
            write(code.index(empty), &vec![Rounded { integers: [zeros; 2], scale }; self.planes()]);
        }
    }

    /// Returns the groups without numbers at the end of the last chunk.
    fn padding(self) -> Range<usize> {
        self.inputs.div_ceil(GROUP)..self.groups()
    }
}

impl<'k> Source<'k> {
    /// Calls `body` for each block of the row, and passes the index of the block's first group.
    fn each(self, body: impl Fn(Value<'k>, Block)) {
        self.fold(&[], |first, block, _| {
            body(first, block);
            Vec::new()
        });
    }

    /// Computes new values from the previous values in each block of the row.
    fn fold(
        self,
        values: &[Value<'k>],
        body: impl Fn(Value<'k>, Block, &[Value<'k>]) -> Vec<Value<'k>>,
    ) -> Vec<Value<'k>> {
        let Groups { runs, rest } = self.groups;
        let (mut values, mut start) = (values.to_vec(), self.code.index(0));
        for (end, groups) in runs.into_iter().flatten() {
            let block = Block { groups, numbers: GROUP };
            values = self.code.fold(start..end, groups, &values, |first, values| body(first, block, values));
            start = end;
        }
        if let Some((group, numbers)) = rest {
            values = body(group, Block { groups: 1, numbers }, &values);
        }
        values
    }

    /// Returns the numbers of a group, as f32.
    fn halves(self, group: Value<'k>, block: Block) -> [Value<'k>; 2] {
        let at = self.from + group * GROUP;
        [0, 16].map(|half| self.x.load_floats(at + half, block.numbers.saturating_sub(half)))
    }

    /// Returns the largest magnitude of each group in a block, as f32.
    fn largest(self, first: Value<'k>, block: Block) -> Value<'k> {
        // As integers, the bits of non-negative floats have the same order as the floats, and the
        // bits of NaN are the largest.
        let integer = Type::lanes(16, Element::I32);
        let magnitudes = self.code.collect((block.groups, 1), integer, |i| {
            let halves = self.halves(first + i, block);
            let halves =
                halves.map(|half| half.bits(integer).and(self.code.constant(integer, f64::from(i32::MAX))));
            vec![halves[0].max(halves[1])]
        });
        reduce_each(magnitudes, Value::max).bits(Type::lanes(block.groups, Element::F32))
    }

    /// Returns the largest magnitude of a group without outliers; `None` if the kernel does not look
    /// for outliers. If the function gets a place of a buffer, it stores the largest magnitudes of all groups
    /// there.
    fn limit(self, kept: Option<(Buffer<'k>, Value<'k>)>) -> Option<Value<'k>> {
        let [integer, float] = [Element::I32, Element::F32].map(Type::Scalar);
        (self.form.bits == ActivationBits::Mixed).then(|| {
            let zero = self.code.constant(integer, 0.0);
            let sums = self.fold(&[zero; 2], |first, block, sums| {
                let largest = self.largest(first, block);
                kept.iter().for_each(|(buffer, at)| buffer.store_bits(first * 4 + *at, largest));
                let bits = largest.bits(Type::lanes(block.groups, Element::I32));
                let [none, one] = [0.0, 1.0].map(|number| self.code.constant(bits.ty(), number));
                let counts = one.or_else(bits.greater(none), none);
                vec![sums[0] + bits.shift_right(IGNORED_BITS as usize).sum(), sums[1] + counts.sum()]
            });
            let one = self.code.constant(integer, 1.0);
            let mean = sums[0].divide(sums[1].max(one)).shift_left(IGNORED_BITS as usize);
            mean.bits(float) * self.code.constant(float, f64::from(OUTLIER))
        })
    }

    /// Returns the factors from numbers to integers, and the factors from integers to numbers, for
    /// groups with these largest magnitudes.
    fn factors(self, largest: Value<'k>) -> [Value<'k>; 2] {
        let [full, zero] =
            [LARGEST_ACTIVATION, 0.0].map(|number| self.code.constant(largest.ty(), f64::from(number)));
        [full.divide(largest).or_else(largest.greater(zero), zero), largest.divide(full)]
    }

    /// Returns the scales of residuals, which are 0 for groups without outliers.
    fn residual_scales(self, limit: Option<Value<'k>>, largest: Value<'k>, scales: Value<'k>) -> Value<'k> {
        let Type::Vector(groups, _) = scales.ty() else { unreachable!("a block has several groups") };
        let [steps, zero] =
            [RESIDUAL_STEPS, 0.0].map(|number| self.code.constant(scales.ty(), f64::from(number)));
        let scales = scales.divide(steps);
        match limit {
            Some(limit) => scales.or_else(largest.greater(limit.broadcast(groups)), zero),
            None => scales,
        }
    }

    /// Returns the numbers of a group in units of the group's scale, and the nearest integers.
    fn rounded(self, group: Value<'k>, block: Block, inverse: Value<'k>) -> ([Value<'k>; 2], [Value<'k>; 2]) {
        let units = self.halves(group, block).map(|half| half * inverse.broadcast(16));
        (units, units.map(|units| units.round().convert(Element::I32)))
    }
}

/// Returns the rounding errors of some numbers, as integers in smaller units.
fn residuals(units: [Value<'_>; 2]) -> [Value<'_>; 2] {
    units.map(|units| {
        let number = |number: f32| units.code().constant(units.ty(), f64::from(number));
        let error = units.round().multiply_add(number(-1.0), units);
        (error * number(RESIDUAL_STEPS)).round().convert(Element::I32)
    })
}

/// A quantized row: the buffer that contains the row, and the index of the row's first byte.
#[derive(Clone, Copy)]
pub(crate) struct Row<'k> {
    pub(crate) buffer: Buffer<'k>,
    pub(crate) at: Value<'k>,
    pub(crate) form: Form,
    /// The number of integers, as [`Form::values`]. In functions, only this number says the size of a row.
    pub(crate) values: Value<'k>,
    /// 0 for the rounded activations, and 1 for the residuals.
    plane: usize,
}

impl<'k> Row<'k> {
    pub(crate) fn new(buffer: Buffer<'k>, at: Value<'k>, form: Form) -> Self {
        Self::sized(buffer, at, form, at.code().index(form.values()))
    }

    /// A row with this number of integers, whatever size the form has.
    pub(crate) fn sized(buffer: Buffer<'k>, at: Value<'k>, form: Form, values: Value<'k>) -> Self {
        Self { buffer, at, form, values, plane: 0 }
    }

    /// Returns the residuals of the row. The form must have residuals.
    pub(crate) fn residuals(self) -> Self {
        Self { plane: 1, ..self }
    }

    /// Returns the index of the byte of a column.
    pub(crate) fn place(self, column: Value<'k>) -> Value<'k> {
        self.at + (column + self.values * self.plane)
    }

    /// Returns the integers of four consecutive columns, as one 32-bit word.
    pub(crate) fn four(self, column: Value<'k>) -> Value<'k> {
        let four = self.buffer.load(self.place(column), Type::lanes(4, Element::I8));
        four.bits(Type::Scalar(Element::I32))
    }

    pub(crate) fn scale(self, group: Value<'k>) -> Value<'k> {
        self.words(self.scales(), group, 1).bits(Type::Scalar(Element::F32))
    }

    /// Returns the bits of the scales of some groups. The bits are 0 for groups without residuals.
    pub(crate) fn scale_bits(self, group: Value<'k>, count: usize) -> Value<'k> {
        self.words(self.scales(), group, count).bits(Type::lanes(count, Element::I32))
    }

    /// Returns the number of groups with residuals, in a row of mixed activations.
    pub(crate) fn listed(self) -> Value<'k> {
        self.listed_word(self.at.code().index(0)).place()
    }

    /// Returns the group with this position in the list of the groups with residuals. The list is in
    /// ascending order.
    pub(crate) fn listed_group(self, position: Value<'k>) -> Value<'k> {
        self.listed_word(position + 1).place()
    }

    fn listed_word(self, word: Value<'k>) -> Value<'k> {
        self.words(self.list(), word, 1).bits(Type::Scalar(Element::I32))
    }

    /// Appends a group to the list of the groups with residuals.
    fn append_to_list(self, group: Value<'k>) {
        let count = self.listed();
        self.put(self.list(), count + 1, group.number());
        self.put(self.list(), group.code().index(0), (count + 1).number());
    }

    /// Returns the sum of a group of the quantized row, as a 32-bit number.
    pub(crate) fn sum(self, group: Value<'k>) -> Value<'k> {
        self.half_sum(group, 0)
    }

    /// Returns the sum of one half of a group, if the layout has a sum for each half.
    pub(crate) fn half_sum(self, group: Value<'k>, half: usize) -> Value<'k> {
        let element = match self.form.sums {
            Sums::Numbers | Sums::HalfNumbers => Element::F32,
            Sums::Times(_) | Sums::Halves(_) => Element::I32,
        };
        let at = group * self.form.sums.per_group() + half;
        self.words(self.sums(), at, 1).bits(Type::Scalar(element))
    }

    /// The number of bytes that a number of 32 bits for each group takes.
    fn of_groups(self) -> Value<'k> {
        self.values.divide(self.values.code().index(GROUP / 4))
    }

    fn scales(self) -> Value<'k> {
        self.values * self.form.planes() + self.of_groups() * self.plane
    }

    fn sums(self) -> Value<'k> {
        let sums = self.of_groups() * (self.form.sums.per_group() - 1);
        self.scales() + self.of_groups() * self.form.planes() + sums * self.plane
    }

    /// The place of the factors from which the residuals are computed: the last words of the sums.
    fn factors(self) -> Value<'k> {
        self.sums() + self.of_groups() * (self.form.sums.per_group() - 1)
    }

    /// The place of the list, as [`Form::list`].
    fn list(self) -> Value<'k> {
        let words = 1 + self.form.sums.per_group();
        (self.values + self.of_groups() * words) * self.form.planes()
    }

    fn words(self, part: Value<'k>, group: Value<'k>, count: usize) -> Value<'k> {
        self.buffer.load(self.at + (group * 4 + part), Type::lanes(4 * count, Element::I8))
    }

    fn put(self, part: Value<'k>, group: Value<'k>, words: Value<'k>) {
        let bytes = Type::lanes(words.ty().bits() / 8, Element::I8);
        self.buffer.store(self.at + (group * 4 + part), words.bits(bytes));
    }

    /// Stores the integers of a group, and returns 16 numbers for each sum of the group, whose sum
    /// is the sum of the integers.
    fn store(self, group: Value<'k>, integers: [Value<'k>; 2]) -> Vec<Value<'k>> {
        for (half, integers) in integers.into_iter().enumerate() {
            self.buffer.store(self.place(group * GROUP + 16 * half), integers.convert(Element::I8));
        }
        if self.form.sums.per_group() == 2 { integers.to_vec() } else { vec![integers[0] + integers[1]] }
    }

    /// Stores the sums of groups with these sums of integers and scales.
    fn put_sums(self, first: Value<'k>, sums: Value<'k>, scales: Value<'k>) {
        let sums = match self.form.sums {
            Sums::Times(added) | Sums::Halves(added) => {
                sums * sums.code().constant(sums.ty(), f64::from(added))
            }
            Sums::Numbers => sums.convert(Element::F32) * scales,
            Sums::HalfNumbers => {
                let Type::Vector(groups, _) = scales.ty() else { unreachable!("a block has several groups") };
                let twice: Vec<usize> = (0..2 * groups).map(|lane| lane / 2).collect();
                sums.convert(Element::F32) * scales.pick(scales, &twice)
            }
        };
        self.put(self.sums(), first * self.form.sums.per_group(), sums);
    }

    /// Quantizes a row of the activations x, and stores the quantized row in memory. Rows of whole groups share
    /// a function, whatever their size.
    pub(crate) fn fill(self, code: &'k Code, x: Buffer<'k>, from: Value<'k>) {
        let Self { buffer, at, form, values, .. } = self;
        let scales = at + self.scales();
        let groups = form.inputs / GROUP;
        if !form.inputs.is_multiple_of(GROUP) || !form.padding().is_empty() {
            let source = Source { code, x, from, form, groups: Groups::of(code, form) };
            return self.fill_from(source, source.limit(Some((buffer, scales))));
        }
        let together = 1 << groups.trailing_zeros().min(TOGETHER.trailing_zeros());
        let (element, end) = (x.element(), code.index(groups));
        let limit = (form.bits == ActivationBits::Mixed).then(|| {
            let name = format!("limit_of_row_{element}_by{together}");
            let result = [Type::Scalar(Element::F32)];
            let found =
                code.call(&name, (&[x, buffer], &[from, scales, end]), &result, |code, all, operands| {
                    let &[from, scales, end] = operands else { unreachable!("three operands") };
                    let source = Source { code, x: all[0], from, form, groups: Groups::run(end, together) };
                    source.limit(Some((all[1], scales))).into_iter().collect()
                });
            found[0]
        });
        let (sums, bits) = (form.sums.name(), bits_suffix(form.bits));
        let name = format!("quantize_row_{element}_{sums}{bits}_by{together}");
        let operands: Vec<Value<'k>> = [from, at, values, end].into_iter().chain(limit).collect();
        code.call(&name, (&[x, buffer], &operands), &[], |code, all, operands| {
            let (&[from, at, values, end], limit) = operands.split_first_chunk().unwrap_or_else(|| {
                unreachable!("four operands and the limit");
            });
            let source = Source { code, x: all[0], from, form, groups: Groups::run(end, together) };
            Row::sized(all[1], at, form, values).fill_from(source, limit.first().copied());
            Vec::new()
        });
    }

    fn fill_from(self, source: Source<'k>, limit: Option<Value<'k>>) {
        let code = source.code;
        let residuals = (self.form.planes() == 2).then(|| self.residuals());
        source.each(|first, block| {
            let largest = match limit {
                Some(_) => {
                    let ty = Type::lanes(block.groups, Element::F32);
                    self.words(self.scales(), first, block.groups).bits(ty)
                }
                None => source.largest(first, block),
            };
            let [inverses, scales] = source.factors(largest);
            let inverse = code.lanes(inverses);
            let per_group = self.form.sums.per_group();
            let sums = code.collect((block.groups, per_group), Type::lanes(16, Element::I32), |i| {
                let (_, integers) = source.rounded(first + i, block, inverse(i));
                self.store(first + i, integers)
            });
            let sums = reduce_each(sums, Value::add);
            self.put(self.scales(), first, scales);
            self.put_sums(first, sums, scales);
            if let Some(row) = residuals {
                row.put(row.scales(), first, source.residual_scales(limit, largest, scales));
                // The place of the sums contains the factors until the kernel computes the residuals.
                row.put(row.factors(), first, inverses);
            }
        });
        if let Some(row) = residuals {
            row.fill_residuals(source);
        }
        for empty in self.form.padding() {
            let group = code.index(empty);
            let zeros = code.constant(Type::lanes(16, Element::I32), 0.0);
            let zero = code.constant(Type::Scalar(Element::I32), 0.0);
            for row in [Some(self), residuals].into_iter().flatten() {
                row.store(group, [zeros; 2]);
                row.put(row.scales(), group, zero);
                let each = self.form.sums.per_group();
                (0..each).for_each(|half| row.put(row.sums(), group * each + half, zero));
            }
        }
    }

    /// Computes the residuals of the groups whose scale is not 0. Few groups have residuals, so the kernel
    /// looks at a block of groups first. In all other groups, the integers can have any value.
    fn fill_residuals(self, source: Source<'k>) {
        let code = source.code;
        let zero = code.constant(Type::Scalar(Element::I32), 0.0);
        let lists = self.form.bits == ActivationBits::Mixed;
        if lists {
            self.put(self.list(), code.index(0), zero);
        }
        source.each(|first, block| {
            let one = |group: Value<'k>| {
                let alone = Block { groups: 1, ..block };
                let inverse = self.words(self.factors(), group, 1).bits(Type::Scalar(Element::F32));
                let (units, _) = source.rounded(group, alone, inverse);
                let sum = reduce_each(self.store(group, residuals(units)), Value::add);
                let scale = self.words(self.scales(), group, 1).bits(Type::lanes(1, Element::F32));
                self.put_sums(group, sum, scale);
                if lists {
                    self.append_to_list(group);
                }
            };
            let none = |group, count| {
                let each = self.form.sums.per_group();
                let zeros = code.constant(Type::lanes(count * each, Element::I32), 0.0);
                self.put(self.sums(), group * each, zeros);
            };
            let is_none = |group, count| self.scale_bits(group, count).bits_of_any_lane().equals(zero);
            let each = || match block.groups {
                1 => one(first),
                groups => code.repeat(first..first + groups, 1, |group| {
                    code.either(is_none(group, 1), || none(group, 1), || one(group));
                }),
            };
            code.either(is_none(first, block.groups), || none(first, block.groups), each);
        });
    }
}

/// Returns a kernel that quantizes the activations x `[rows, inputs]`, and stores the quantized
/// rows in the layout `form`. The kernel does not fill the padding rows from `rows` to `stored`.
pub(crate) fn kernel(
    element: Element,
    [rows, stored]: [usize; 2],
    form: Form,
) -> (String, impl FnOnce() -> Kernel) {
    let more = if stored == rows { String::new() } else { format!("_of_{stored}") };
    let name = format!("quantize_{element}_{rows}{more}x{}", form.name());
    let inputs = form.inputs;
    let workgroups = rows.min(8);
    let body = move || {
        kernel::new(2, workgroups, |code| {
            let x = code.binding(0, element, rows * inputs);
            let buffer = code.binding(1, Element::I8, stored * form.bytes());
            code.repeat(kernel::share(code, rows, workgroups), 1, |row| {
                Row::new(buffer, row * form.bytes(), form).fill(code, x, row * inputs);
            });
        })
    };
    (name, body)
}
