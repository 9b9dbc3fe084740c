//! The numbers of the sampler: names, help texts and ranges for the command line, the server and Python.

use rand_chacha::ChaCha8Rng;

use super::candidates::Candidate;
use crate::GenerateError;

/// A number that configures the sampler.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    /// The name in requests and in Python, which is the name in llama.cpp's server if there is one.
    pub name: &'static str,
    /// Other names in requests and in Python.
    pub aliases: &'static [&'static str],
    /// The flags of the command line, without `--`. An empty list stands for the name with hyphens.
    pub flags: &'static [&'static str],
    /// The placeholder of the number in help texts.
    pub placeholder: &'static str,
    /// The effect, as a phrase that begins in upper case and has no period at its end.
    pub help: &'static str,
    /// The valid numbers.
    pub range: Range,
    /// The key of a model's `generation_config.json`, if a model can set the number.
    pub model_key: Option<&'static str>,
}

/// The valid numbers of a [`Setting`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Range {
    /// The smallest valid number, unless [`is_open`](Self::is_open).
    pub least: f64,
    /// The largest valid number.
    pub most: f64,
    /// Whether only numbers above `least` are valid.
    pub is_open: bool,
    /// Whether only whole numbers are valid.
    pub is_whole: bool,
    /// A description of the valid numbers for error messages.
    pub expected: &'static str,
}

impl Range {
    pub(super) const NUMBER: Self = Self::of(f32::MIN as f64, f32::MAX as f64, "a finite number");
    pub(super) const SHARE: Self = Self::of(0.0, 1.0, "a number from 0 to 1");
    pub(super) const FROM_ZERO: Self = Self::of(0.0, f32::MAX as f64, "a number from 0");
    pub(super) const ABOVE_ZERO: Self =
        Self { is_open: true, ..Self::of(0.0, f32::MAX as f64, "a number above 0") };
    pub(super) const COUNT: Self = Self::whole(0.0, u64::MAX as f64, "a whole number from 0");
    pub(super) const COUNT_OR_ALL: Self = Self::whole(-1.0, u64::MAX as f64, "a whole number from -1");

    const fn of(least: f64, most: f64, expected: &'static str) -> Self {
        Self { least, most, is_open: false, is_whole: false, expected }
    }

    pub(super) const fn whole(least: f64, most: f64, expected: &'static str) -> Self {
        Self { is_whole: true, ..Self::of(least, most, expected) }
    }

    /// Whether the range contains a number.
    pub fn contains(&self, number: f64) -> bool {
        (self.least..=self.most).contains(&number)
            && !(self.is_open && number == self.least)
            && !(self.is_whole && number.fract() != 0.0)
    }
}

/// The place where a number is stored.
pub(super) trait Slot {
    fn get(&self) -> f64;

    fn set(&mut self, number: f64);
}

impl Slot for f32 {
    fn get(&self) -> f64 {
        (*self).into()
    }

    fn set(&mut self, number: f64) {
        *self = number as f32;
    }
}

/// A negative number is stored as 0.
impl Slot for usize {
    fn get(&self) -> f64 {
        *self as f64
    }

    fn set(&mut self, number: f64) {
        *self = number as usize;
    }
}

/// A negative number is stored as `None`, which stands for all tokens.
impl Slot for Option<usize> {
    fn get(&self) -> f64 {
        self.map_or(-1.0, |count| count as f64)
    }

    fn set(&mut self, number: f64) {
        *self = (number >= 0.0).then_some(number as usize);
    }
}

/// A number of the type `T`, which contains the settings of a sampling step.
pub(super) struct NumberField<T: 'static> {
    pub setting: Setting,
    pub slot: fn(&mut T) -> &mut dyn Slot,
}

impl Setting {
    /// A setting with the usual names, to be completed with `..`.
    pub(super) const fn new(name: &'static str, range: Range) -> Self {
        let (aliases, flags): (&[&str], &[&str]) = (&[], &[]);
        Self { name, aliases, flags, placeholder: "N", help: "", range, model_key: None }
    }

    pub(super) fn check(&self, number: f64) -> Result<(), GenerateError> {
        if self.range.contains(number) {
            return Ok(());
        }
        let found = self.shown(number);
        Err(GenerateError::Setting { name: self.name, found, expected: self.range.expected })
    }

    /// Formats a number of this setting with the digits of an f32 number.
    pub fn shown(&self, number: f64) -> String {
        let short = number as f32;
        if self.range.is_whole || short.is_infinite() { number.to_string() } else { short.to_string() }
    }
}

/// The effect of a sampling step on the most likely token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    /// The step changes logits, before the rules forbid tokens.
    Penalizes,
    /// The most likely token stays the most likely token.
    KeepsBest,
    /// The step can remove the most likely token.
    RemovesBest,
}

/// The definition of a sampling step with settings of the type `T`.
pub(super) struct StepFacts<T: 'static> {
    pub effect: Effect,
    /// Whether the step changes nothing with these settings.
    pub is_off: fn(&T) -> bool,
    /// Changes or removes candidates. At least one candidate remains.
    pub run: fn(&T, &mut Vec<Candidate>, &mut Draw<'_>),
    pub fields: &'static [NumberField<T>],
}

/// The inputs of a sampling step for one token.
pub(super) struct Draw<'a> {
    /// The tokens before the next token.
    pub seen: &'a [u32],
    pub random: &'a mut ChaCha8Rng,
}
