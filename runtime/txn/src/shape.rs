//! The type of a result as a list of steps over its bytes. A check that walked the type itself would cost as much as the call.

use reprise_abi::{ModuleSchema, ScalarType, Type, value::ValueReader};

/// One step over the bytes of a value.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ShapeStep {
    /// This number of bytes of any value.
    Fixed(usize),
    /// A byte that is 0 or 1.
    Flag,
    /// A length, and as many bytes of UTF-8.
    Text,
    /// A length, and as many bytes.
    Bytes,
    /// The number of a variant, which must be below this one.
    Variant(usize),
    /// A flag. If it is 0, this number of next steps is skipped.
    Option(usize),
    /// A count. This number of next steps checks each item.
    List(usize),
}

/// The steps over the encoded values of one type.
pub(crate) struct Shape(Box<[ShapeStep]>);

impl Shape {
    pub fn of(ty: &Type) -> Self {
        let mut steps = Steps::default();
        steps.push(ty);
        Self(steps.all.into())
    }

    /// True if `bytes` are one value of the type, and no more.
    #[inline]
    pub fn holds(&self, bytes: &[u8]) -> bool {
        pass(&self.0, bytes).is_some_and(<[u8]>::is_empty)
    }
}

/// Returns the shapes of the results of all procedures.
pub(crate) fn results_of(schema: &ModuleSchema) -> Vec<Shape> {
    let procedures = schema.procedures.iter();
    procedures.map(|procedure| Shape::of(&procedure.returns)).collect()
}

#[derive(Default)]
struct Steps {
    all: Vec<ShapeStep>,
    /// True if the last step is `Fixed`, and no option or list ends with it.
    takes_more: bool,
}

impl Steps {
    fn push(&mut self, ty: &Type) {
        match ty {
            Type::Unit => {}
            Type::Scalar(ScalarType::Bool) => self.push_step(ShapeStep::Flag),
            Type::Scalar(ScalarType::Text) => self.push_step(ShapeStep::Text),
            Type::Scalar(ScalarType::Bytes) => self.push_step(ShapeStep::Bytes),
            Type::Scalar(fixed) => self.push_fixed(fixed.slot_bytes()),
            Type::Option(inner) => self.push_around(ShapeStep::Option, inner),
            Type::List(item) => self.push_around(ShapeStep::List, item),
            Type::Struct(of) => of.fields.iter().for_each(|field| self.push(&field.ty)),
            Type::Enum(variants) => self.push_step(ShapeStep::Variant(variants.len())),
        }
    }

    fn push_step(&mut self, step: ShapeStep) {
        self.all.push(step);
        self.takes_more = false;
    }

    fn push_fixed(&mut self, bytes: usize) {
        match self.all.last_mut() {
            Some(ShapeStep::Fixed(before)) if self.takes_more => *before += bytes,
            _ => self.all.push(ShapeStep::Fixed(bytes)),
        }
        self.takes_more = true;
    }

    fn push_around(&mut self, step: fn(usize) -> ShapeStep, inner: &Type) {
        let at = self.all.len();
        self.push_step(step(0));
        self.push(inner);
        self.all[at] = step(self.all.len() - at - 1);
        self.takes_more = false;
    }
}

/// Returns the bytes behind the steps. None if the bytes are no such value.
fn pass<'b>(mut steps: &[ShapeStep], mut bytes: &'b [u8]) -> Option<&'b [u8]> {
    while let [step, next @ ..] = steps {
        steps = next;
        match *step {
            ShapeStep::Fixed(count) => bytes = bytes.get(count..)?,
            ShapeStep::Flag => bytes = flag(bytes)?.1,
            ShapeStep::Text => {
                let (text, rest) = sized(bytes)?;
                if !text.is_ascii() && str::from_utf8(text).is_err() {
                    return None;
                }
                bytes = rest;
            }
            ShapeStep::Bytes => bytes = sized(bytes)?.1,
            ShapeStep::Variant(count) => {
                let (variant, rest) = varint(bytes)?;
                if variant >= count {
                    return None;
                }
                bytes = rest;
            }
            ShapeStep::Option(inner) => {
                let (is_there, rest) = flag(bytes)?;
                if !is_there {
                    steps = &steps[inner..];
                }
                bytes = rest;
            }
            ShapeStep::List(item) => {
                let (count, rest) = varint(bytes)?;
                let (item, next) = steps.split_at(item);
                steps = next;
                bytes = pass_items(item, count, rest)?;
            }
        }
    }
    Some(bytes)
}

/// Checks the items of a list. The count is valid only if each item could have one byte.
#[inline]
fn pass_items<'b>(item: &[ShapeStep], count: usize, mut bytes: &'b [u8]) -> Option<&'b [u8]> {
    if count > bytes.len() {
        return None;
    }
    if let [ShapeStep::Fixed(each)] = item {
        return bytes.get(count.checked_mul(*each)?..);
    }
    for _ in 0..count {
        bytes = pass(item, bytes)?;
    }
    Some(bytes)
}

#[inline(always)]
fn flag(bytes: &[u8]) -> Option<(bool, &[u8])> {
    match bytes {
        [flag @ (0 | 1), rest @ ..] => Some((*flag == 1, rest)),
        _ => None,
    }
}

#[inline(always)]
fn sized(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = varint(bytes)?;
    rest.split_at_checked(length)
}

#[inline(always)]
fn varint(bytes: &[u8]) -> Option<(usize, &[u8])> {
    match bytes {
        [short @ ..=0x7f, rest @ ..] => Some(((*short).into(), rest)),
        _ => long_varint(bytes),
    }
}

#[cold]
fn long_varint(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let mut reader = ValueReader::new(bytes);
    let value = reader.varint().ok()?;
    Some((value as usize, &bytes[reader.offset()..]))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use reprise_abi::{StructField, StructType, value::push_varint};

    use super::*;

    fn types() -> impl Strategy<Value = Type> {
        let scalars = [
            ScalarType::Bool,
            ScalarType::I8,
            ScalarType::I32,
            ScalarType::U64,
            ScalarType::Decimal { scale: 2 },
            ScalarType::Text,
            ScalarType::Bytes,
        ];
        let leaf = prop_oneof![
            1 => Just(Type::Unit),
            1 => (1..300usize).prop_map(|count| Type::Enum(vec![String::new(); count])),
            8 => proptest::sample::select(scalars.to_vec()).prop_map(Type::Scalar),
        ];
        leaf.prop_recursive(4, 20, 5, |inner| {
            let fields = prop::collection::vec(inner.clone(), 0..5);
            prop_oneof![
                inner.clone().prop_map(|inner| Type::Option(Box::new(inner))),
                inner.prop_map(|item| Type::List(Box::new(item))),
                fields.prop_map(|fields| {
                    let name = String::new();
                    let field = |ty| StructField { name: name.clone(), ty };
                    Type::Struct(StructType::from(fields.into_iter().map(field).collect::<Vec<_>>()))
                }),
            ]
        })
    }

    /// Appends a value of the type, which `draws` decide.
    fn push_value(ty: &Type, draws: &mut impl Iterator<Item = u8>, out: &mut Vec<u8>) {
        let mut draw = || draws.next().unwrap_or_default();
        match ty {
            Type::Unit => {}
            Type::Scalar(ScalarType::Bool) => out.push(draw() & 1),
            Type::Scalar(ScalarType::Text | ScalarType::Bytes) => {
                let text = "aé€𐍈".repeat(draw() as usize % 20);
                push_varint(out, text.len() as u32);
                out.extend(text.bytes());
            }
            Type::Scalar(fixed) => (0..fixed.slot_bytes()).for_each(|_| out.push(draw())),
            Type::Option(inner) => {
                let is_there = draw() & 1;
                out.push(is_there);
                if is_there == 1 {
                    push_value(inner, draws, out);
                }
            }
            Type::List(item) => {
                let count = draw() % 4;
                out.push(count);
                (0..count).for_each(|_| push_value(item, draws, out));
            }
            Type::Struct(of) => of.fields.iter().for_each(|field| push_value(&field.ty, draws, out)),
            Type::Enum(variants) => push_varint(out, u32::from(draw()) % variants.len() as u32),
        }
    }

    fn is_read(ty: &Type, bytes: &[u8]) -> bool {
        let mut reader = ValueReader::new(bytes);
        reader.skip(ty).is_ok() && reader.finish().is_ok()
    }

    proptest! {
        #[test]
        fn shape_holds_the_bytes_that_a_reader_of_the_type_takes(
            ty in types(),
            draws in prop::collection::vec(any::<u8>(), 0..200),
            change in any::<prop::sample::Index>(),
            to in prop_oneof![0..4u8, 0x7e..0x82u8, any::<u8>()],
        ) {
            let (shape, mut bytes) = (Shape::of(&ty), Vec::new());
            push_value(&ty, &mut draws.iter().copied(), &mut bytes);
            prop_assert!(shape.holds(&bytes) == is_read(&ty, &bytes));
            for end in 0..bytes.len() {
                prop_assert_eq!(shape.holds(&bytes[..end]), is_read(&ty, &bytes[..end]));
            }
            bytes.push(to);
            prop_assert_eq!(shape.holds(&bytes), is_read(&ty, &bytes));
            let at = change.index(bytes.len());
            bytes[at] = to;
            prop_assert_eq!(shape.holds(&bytes), is_read(&ty, &bytes));
            prop_assert_eq!(shape.holds(&draws), is_read(&ty, &draws));
        }
    }
}
