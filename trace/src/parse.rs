//! Parses the text form of a trace.

use std::collections::HashMap;
use std::str::FromStr;
use std::sync::Arc;

use ops::{Attribute as _, Op, ParseError, Reader, TensorType};

use crate::axis;
use crate::{
    Function, FunctionId, Node, NodeId, NodeKind, Output, Parameter, Provenance, Recipe, Role, Trace,
};

impl FromStr for Trace {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let mut parser = Parser { reader: Reader::new(text), strings: HashMap::new() };
        let mut trace = Self::default();
        while !parser.reader.at_end() {
            parser.blank_lines();
            let is_entry = parser.reader.eat("entry");
            if !is_entry {
                parser.reader.expect("function")?;
            }
            let function = parser.function(&trace)?;
            if is_entry {
                trace.entries.push(FunctionId(trace.functions.len() as u32));
            }
            trace.functions.push(function);
        }
        Ok(trace)
    }
}

struct Parser<'a> {
    reader: Reader<'a>,
    /// Paths and files that were read: the text repeats them often.
    strings: HashMap<String, Arc<str>>,
}

impl Parser<'_> {
    fn blank_lines(&mut self) {
        while self.reader.eat("\n") {}
    }

    fn name(&mut self) -> Result<String, ParseError> {
        self.reader.expect("@")?;
        self.reader.take_while("a name", |c| c.is_alphanumeric() || "_.-".contains(c)).map(str::to_owned)
    }

    fn shared(&mut self) -> Result<Arc<str>, ParseError> {
        let text = self.reader.string()?;
        Ok(self.strings.entry(text).or_insert_with_key(|text| text.as_str().into()).clone())
    }

    fn function(&mut self, trace: &Trace) -> Result<Function, ParseError> {
        let name = self.name()?;
        let prefix = if self.reader.eat("prefix=") { self.reader.string()? } else { String::new() };
        let mut function = Function::new(name, prefix);
        self.reader.expect("{")?;
        self.reader.expect("\n")?;
        loop {
            self.blank_lines();
            if self.reader.eat("}") {
                self.reader.expect("\n")?;
                return Ok(function);
            }
            if self.reader.eat("return") {
                let node = self.operand(&function)?;
                let name = self.reader.string()?;
                function.outputs.push(Output { name, role: self.role()?, node });
            } else {
                let expected = format!("%{} =", function.len());
                self.reader.expect(&expected)?;
                self.node(trace, &mut function)?;
            }
            self.reader.expect("\n")?;
        }
    }

    fn role(&mut self) -> Result<Role, ParseError> {
        if self.reader.eat("role=") { Role::parse(&mut self.reader) } else { Ok(Role::Plain) }
    }

    fn operand(&mut self, function: &Function) -> Result<NodeId, ParseError> {
        self.reader.expect("%")?;
        let index = usize::parse(&mut self.reader)?;
        if index < function.len() {
            Ok(NodeId::new(index))
        } else {
            self.reader.error(format!("a node before %{}", function.len()))
        }
    }

    fn node(&mut self, trace: &Trace, function: &mut Function) -> Result<(), ParseError> {
        let mut kind = if self.reader.eat("input") {
            let (index, name) = (usize::parse(&mut self.reader)?, self.reader.string()?);
            NodeKind::Input { index, name, role: self.role()? }
        } else if self.reader.eat("parameter") {
            let ty = TensorType::new(ops::ElementType::F32, []);
            let mut parameter = Parameter::new(self.reader.string()?, ty);
            if self.reader.eat("=") {
                parameter.recipe = Some(Recipe::parse(&mut self.reader)?.into());
            }
            NodeKind::Parameter(parameter)
        } else if self.reader.eat("call") {
            let name = self.name()?;
            let Some(callee) = trace.functions.iter().position(|f| f.name == name) else {
                return self.reader.error(format!("a function before this one, `{name}` is none"));
            };
            self.reader.expect("prefix=")?;
            NodeKind::Call { function: FunctionId(callee as u32), prefix: self.reader.string()? }
        } else if self.reader.eat("result") {
            NodeKind::Result { index: usize::parse(&mut self.reader)? }
        } else {
            NodeKind::Op(Op::parse(&mut self.reader)?)
        };
        self.reader.expect("(")?;
        let mut operands = Vec::new();
        while !self.reader.eat(")") {
            if !operands.is_empty() {
                self.reader.expect(",")?;
            }
            operands.push(self.operand(function)?);
        }
        self.reader.expect(":")?;
        let types = match &kind {
            NodeKind::Call { .. } => self.reader.list()?,
            _ => vec![TensorType::parse(&mut self.reader)?],
        };
        if let NodeKind::Parameter(parameter) = &mut kind {
            parameter.ty = types[0].clone();
        }
        let mut axes = Vec::new();
        if self.reader.eat("{") {
            while !self.reader.eat("}") {
                if !axes.is_empty() {
                    self.reader.expect(",")?;
                }
                axes.push(axis::parse(&mut self.reader)?);
            }
        }
        self.reader.expect("from")?;
        let path = self.shared()?;
        self.reader.expect("at")?;
        let file = self.shared()?;
        self.reader.expect(":")?;
        let line = usize::parse(&mut self.reader)? as u32;
        function.push(Node { kind, types, axes, provenance: Provenance { path, file, line } }, &operands);
        Ok(())
    }
}
