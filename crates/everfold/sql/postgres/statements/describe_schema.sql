-- The schema in one line an object, for comparing a database with what this version expects.
-- Returns: line text, sorted. Grants to the roles are left out (a database may lack the roles);
-- grants to PUBLIC, which must not exist, are not.
WITH described (line) AS (
    SELECT format('table %s options %s', c.oid::regclass, coalesce(array_to_string(c.reloptions, ','), '-'))
      FROM pg_catalog.pg_class c
     WHERE c.relnamespace = 'everfold'::regnamespace AND c.relkind IN ('r', 'p')
    UNION ALL
    SELECT format('column %s.%s %s%s%s%s', a.attrelid::regclass, a.attname,
               pg_catalog.format_type(a.atttypid, a.atttypmod),
               CASE WHEN a.attnotnull THEN ' not null' ELSE '' END,
               CASE a.attidentity WHEN 'a' THEN ' identity always' WHEN 'd' THEN ' identity by default' ELSE '' END,
               coalesce(' default ' || pg_catalog.pg_get_expr(d.adbin, d.adrelid), ''))
      FROM pg_catalog.pg_attribute a
      JOIN pg_catalog.pg_class c ON c.oid = a.attrelid
      LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
     WHERE c.relnamespace = 'everfold'::regnamespace AND c.relkind IN ('r', 'p')
       AND a.attnum > 0 AND NOT a.attisdropped
    UNION ALL
    SELECT format('constraint %s on %s %s', k.conname, k.conrelid::regclass,
               pg_catalog.pg_get_constraintdef(k.oid))
      FROM pg_catalog.pg_constraint k
     WHERE k.connamespace = 'everfold'::regnamespace AND k.contype <> 'n'
    UNION ALL
    SELECT format('index %s', pg_catalog.pg_get_indexdef(i.indexrelid))
      FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
     WHERE c.relnamespace = 'everfold'::regnamespace
    UNION ALL
    SELECT format('trigger %s enabled %s', pg_catalog.pg_get_triggerdef(t.oid), t.tgenabled)
      FROM pg_catalog.pg_trigger t JOIN pg_catalog.pg_class c ON c.oid = t.tgrelid
     WHERE c.relnamespace = 'everfold'::regnamespace AND NOT t.tgisinternal
    UNION ALL
    SELECT format('sequence %s increment %s cache %s cycle %s', s.seqrelid::regclass, s.seqincrement,
               s.seqcache, s.seqcycle)
      FROM pg_catalog.pg_sequence s JOIN pg_catalog.pg_class c ON c.oid = s.seqrelid
     WHERE c.relnamespace = 'everfold'::regnamespace
    UNION ALL
    SELECT format('function %s returns %s %s %s config %s body %s', p.oid::regprocedure,
               pg_catalog.pg_get_function_result(p.oid), p.provolatile,
               CASE WHEN p.prosecdef THEN 'definer' ELSE 'invoker' END,
               coalesce(array_to_string(p.proconfig, ','), '-'), pg_catalog.md5(p.prosrc))
      FROM pg_catalog.pg_proc p
     WHERE p.pronamespace = 'everfold'::regnamespace
    UNION ALL
    SELECT format('public may %s %s', lower(g.privilege_type), c.oid::regclass)
      FROM pg_catalog.pg_class c, pg_catalog.aclexplode(c.relacl) g
     WHERE c.relnamespace = 'everfold'::regnamespace AND g.grantee = 0
    UNION ALL
    SELECT format('public may %s %s', lower(g.privilege_type), p.oid::regprocedure)
      FROM pg_catalog.pg_proc p,
           pg_catalog.aclexplode(coalesce(p.proacl, pg_catalog.acldefault('f', p.proowner))) g
     WHERE p.pronamespace = 'everfold'::regnamespace AND g.grantee = 0
)
SELECT line FROM described ORDER BY line COLLATE "C"
