//! The sources of versions' tables as people think of them: by their present names.

use std::collections::BTreeMap;

use reprise_abi::TableSchema;
use reprise_base::limits::VERSIONS_KEPT_MAX;

/// The full name of a declared table now, and for each declared column the name that it has now. None: it is found by its own name.
pub type Place = Option<(String, Vec<Option<String>>)>;

/// The table's name now, and the names of its columns before and now, by its full name before. None: it is gone.
pub type Moves = BTreeMap<String, Option<(String, Vec<(String, String)>)>>;

#[derive(Clone, Default)]
pub struct Places {
    /// Bytes of the versions in service, by module, and where their tables lie.
    current: BTreeMap<String, (Vec<u8>, Vec<Place>)>,
    /// Tables of versions out of service, the newest last: module, bytes, tables.
    former: Vec<(String, Vec<u8>, Vec<Place>)>,
}

impl Places {
    pub fn is_current(&self, module: &str, bytes: &[u8]) -> bool {
        self.current.get(module).is_some_and(|(current, _)| current == bytes)
    }

    /// Returns the sources of the tables of the last version with these bytes.
    pub fn of(&self, module: &str, bytes: &[u8]) -> Vec<Place> {
        let mut former = self.former.iter().rev();
        let found = former.find(|(name, known, _)| name == module && known == bytes);
        found.map_or(Vec::new(), |(.., places)| places.clone())
    }

    /// Takes the version of a module out of service.
    pub fn retire(&mut self, module: &str) {
        let Some((bytes, places)) = self.current.remove(module) else {
            return;
        };
        self.former.retain(|(name, known, _)| name != module || *known != bytes);
        self.former.push((module.to_owned(), bytes, places));
        let count = self.former.iter().filter(|(name, ..)| name == module).count();
        if count > VERSIONS_KEPT_MAX {
            let oldest = self.former.iter().position(|(name, ..)| name == module);
            self.former.remove(oldest.expect("it was counted"));
        }
    }

    /// Puts a version into service. Its tables are at the declared places.
    pub fn serve(&mut self, module: &str, bytes: Vec<u8>, tables: &[TableSchema]) {
        let places = tables.iter().map(|table| {
            let columns = table.columns.iter().map(|column| Some(column.name.clone()));
            let is_own = table.owner.is_empty();
            is_own.then(|| (format!("{module}.{}", table.name), columns.collect()))
        });
        self.current.insert(module.to_owned(), (bytes, places.collect()));
    }

    /// Takes in for all former versions what became of tables.
    pub fn follow(&mut self, moves: &Moves) {
        for place in self.former.iter_mut().flat_map(|(.., places)| places) {
            let Some((full, columns)) = place else { continue };
            match moves.get(full) {
                None => {}
                Some(None) => *place = None,
                Some(Some((now, names))) => {
                    for column in columns.iter_mut() {
                        let moved = names.iter().find(|(before, _)| Some(before) == column.as_ref());
                        *column = moved.map(|(_, now)| now.clone());
                    }
                    full.clone_from(now);
                }
            }
        }
    }
}
