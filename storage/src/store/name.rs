//! How a call names an object: by its key, or by a reference that spares the look-up.

use std::sync::Arc;

use crate::catalog::{Catalog, Object};
use crate::error::Result;

use super::{ObjectRef, Store};

/// Anything that names an object in a call: a key as any kind of string, or an [`ObjectRef`].
pub trait Named {
    /// Returns the name.
    fn name(&self) -> Name<'_>;
}

/// The name of an object in a call.
#[derive(Debug, Clone, Copy)]
pub enum Name<'a> {
    /// The object that has this key when the call is made.
    Key(&'a str),
    /// This object, whatever its key is by now.
    Object(&'a ObjectRef),
}

impl<T: AsRef<str> + ?Sized> Named for T {
    fn name(&self) -> Name<'_> {
        Name::Key(self.as_ref())
    }
}

impl Named for ObjectRef {
    fn name(&self) -> Name<'_> {
        Name::Object(self)
    }
}

impl Named for &ObjectRef {
    fn name(&self) -> Name<'_> {
        Name::Object(self)
    }
}

impl Name<'_> {
    /// Returns the object of this name.
    ///
    /// # Errors
    /// [`crate::error::Error::NotFound`] when no object has this key.
    pub(super) fn find(self, catalog: &Catalog) -> Result<Arc<Object>> {
        match self {
            Name::Key(key) => catalog.get(key),
            Name::Object(object) => Ok(Arc::clone(&object.0)),
        }
    }
}

impl Store {
    /// Returns the object of this name, in a store that is open.
    pub(super) fn find(&self, object: &(impl Named + ?Sized)) -> Result<ObjectRef> {
        self.check_open()?;
        match object.name() {
            Name::Object(object) => Ok(object.clone()),
            key @ Name::Key(_) => key.find(&self.0.catalog.read()).map(ObjectRef),
        }
    }
}
