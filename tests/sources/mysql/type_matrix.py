"""Every column type, with rows at its borders: the snapshot and the stream read the same ones.

``rows`` are SQL value lists as text, in primary-key order, and ``expected`` is the JSON text of the
first of them; for the rest only the equality of both halves is asked for. Opaque dates inside JSON
are printed as the server prints them, since nobody can tell them from strings in a SELECT.
Insert with ``sql_mode=''`` and ``time_zone='+00:00'``.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """One table of the matrix.

    Attributes:
        name: the table's name.
        columns: the inside of CREATE TABLE's parentheses.
        rows: SQL text of one VALUES list each, without parentheses.
        expected: row JSON text for each row; shorter than ``rows`` where only equality counts.
        options: after the closing parenthesis.
        only: ``mysql`` or ``mariadb``; empty for both.
    """

    name: str
    columns: str
    rows: tuple[str, ...]
    expected: tuple[str, ...] = ()
    options: str = ""
    only: str = ""

    def statements(self) -> list[str]:
        """Return the statements that create and fill the table."""
        create = f"CREATE TABLE `{self.name}` ({self.columns}) {self.options}"
        return [create, *(f"INSERT INTO `{self.name}` VALUES ({row})" for row in self.rows)]


TABLES: tuple[Table, ...] = (
    Table(
        "m_integers",
        "id bigint unsigned primary key, ti tinyint, tu tinyint unsigned, si smallint, "
        "su smallint unsigned, mi mediumint, mu mediumint unsigned, i int, iu int unsigned, "
        "bi bigint, bu bigint unsigned, b1 tinyint(1), z int(8) unsigned zerofill, y year",
        (
            "1,-128,255,-32768,65535,-8388608,16777215,-2147483648,4294967295,"
            "-9223372036854775808,18446744073709551615,1,42,1901",
            "2,0,0,0,0,0,0,0,0,0,0,-1,0,0",
            "3,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL",
            "18446744073709551615,127,200,32767,40000,8388607,9000000,2147483647,3000000000,"
            "9223372036854775807,9223372036854775808,0,99999999,2155",
        ),
        (
            '{"id":1,"ti":-128,"tu":255,"si":-32768,"su":65535,"mi":-8388608,"mu":16777215,'
            '"i":-2147483648,"iu":4294967295,"bi":-9223372036854775808,'
            '"bu":18446744073709551615,"b1":1,"z":42,"y":1901}',
            '{"id":2,"ti":0,"tu":0,"si":0,"su":0,"mi":0,"mu":0,"i":0,"iu":0,"bi":0,"bu":0,'
            '"b1":-1,"z":0,"y":0}',
            '{"id":3,"ti":null,"tu":null,"si":null,"su":null,"mi":null,"mu":null,"i":null,'
            '"iu":null,"bi":null,"bu":null,"b1":null,"z":null,"y":null}',
            '{"id":18446744073709551615,"ti":127,"tu":200,"si":32767,"su":40000,"mi":8388607,'
            '"mu":9000000,"i":2147483647,"iu":3000000000,"bi":9223372036854775807,'
            '"bu":9223372036854775808,"b1":0,"z":99999999,"y":2155}',
        ),
    ),
    Table(
        "m_decimals",
        "id int primary key, d1 decimal(10,2), d2 decimal(65,30), d3 decimal(65,0), "
        "d4 decimal(5,5), d5 decimal(9,0) unsigned, d6 decimal(18,9), d7 decimal(8,3) zerofill",
        (
            "1,-0.50,12345678901234567890123456789012345.123456789012345678901234567890,"
            "99999999999999999999999999999999999999999999999999999999999999999,0.12345,"
            "999999999,-123456789.987654321,12.5",
            "2,0,-0.000000000000000000000000000001,-1,-0.99999,0,0.000000001,0",
            "3,99999999.99,1,1000000000,0.00001,1,-0.1,99999.999",
            "4,NULL,NULL,NULL,NULL,NULL,NULL,NULL",
        ),
        (
            '{"id":1,"d1":"-0.50",'
            '"d2":"12345678901234567890123456789012345.123456789012345678901234567890",'
            '"d3":"99999999999999999999999999999999999999999999999999999999999999999",'
            '"d4":"0.12345","d5":"999999999","d6":"-123456789.987654321","d7":"12.500"}',
            '{"id":2,"d1":"0.00","d2":"-0.000000000000000000000000000001","d3":"-1",'
            '"d4":"-0.99999","d5":"0","d6":"0.000000001","d7":"0.000"}',
        ),
    ),
    Table(
        "m_floats",
        "id int primary key, f float, d double, f2 float(7,3), d2 double(12,4)",
        (
            "1,3.14,3.14,1234.567,12345678.1234",
            "2,16777217,9007199254740993,0,0",
            "3,3.4028234e38,1.7976931348623157e308,-9999.999,-99999999.9999",
            "4,1.17549435e-38,2.2250738585072014e-308,0.001,0.0001",
            "5,-0.0,-0.0,1,1",
            "6,1e10,1e22,0.1,0.1",
            "7,123456.789,0.1,0.2,0.3",
            "8,1e-45,5e-324,0.5,0.5",
            "9,8388608.5,123456789012345680,100,100",
            "10,1e15,1e15,100,100",
            "11,1e16,1e16,100,100",
            "12,1e-5,1e-5,100,100",
            "13,0.0001,0.0001,100,100",
            "14,2.5e-7,1e21,100,100",
            "15,33554432,1e-7,100,100",
            "16,NULL,NULL,NULL,NULL",
        ),
        ('{"id":1,"f":3.14,"d":3.14,"f2":1234.567,"d2":12345678.1234}',),
    ),
    Table(
        "m_temporal",
        "id int primary key, d date, t time, t1 time(1), t3 time(3), t6 time(6), dt datetime, "
        "dt1 datetime(1), dt3 datetime(3), dt6 datetime(6), ts timestamp null, "
        "ts3 timestamp(3) null, ts6 timestamp(6) null",
        (
            "1,'2024-02-29','12:34:56','12:34:56.7','12:34:56.789','12:34:56.789012',"
            "'2024-02-29 12:34:56','2024-02-29 12:34:56.7','2024-02-29 12:34:56.789',"
            "'2024-02-29 12:34:56.789012','2024-02-29 12:34:56','2024-02-29 12:34:56.789',"
            "'2024-02-29 12:34:56.789012'",
            "2,'0000-00-00','838:59:59','-838:59:59.0','-00:00:01.500','-00:00:00.000001',"
            "'0000-00-00 00:00:00','0000-00-00 00:00:00.0','0000-00-00 00:00:00','2024-00-15 "
            "00:00:00.000001','0000-00-00 00:00:00','0000-00-00 00:00:00',"
            "'0000-00-00 00:00:00'",
            "3,'1000-01-01','-00:00:01','00:00:00.1','100:00:00.001','-838:59:58.999999',"
            "'9999-12-31 23:59:59','9999-12-31 23:59:59.9','1000-01-01 00:00:00',"
            "'9999-12-31 23:59:59.999999','1970-01-01 00:00:01','2038-01-19 03:14:07.499',"
            "'2038-01-19 03:14:07.499999'",
            "4,'2024-12-00','00:00:00','00:00:00','00:00:00','00:00:00','2024-00-00 00:00:00',"
            "'0001-01-01 00:00:00','0099-01-01 00:00:00','2024-12-31 00:00:00',"
            "'2001-09-09 01:46:40','2001-09-09 01:46:40.001','2001-09-09 01:46:40.000001'",
            "5,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL",
        ),
        (
            '{"id":1,"d":"2024-02-29","t":"12:34:56","t1":"12:34:56.7","t3":"12:34:56.789",'
            '"t6":"12:34:56.789012","dt":"2024-02-29T12:34:56","dt1":"2024-02-29T12:34:56.7",'
            '"dt3":"2024-02-29T12:34:56.789","dt6":"2024-02-29T12:34:56.789012",'
            '"ts":"2024-02-29T12:34:56Z","ts3":"2024-02-29T12:34:56.789Z",'
            '"ts6":"2024-02-29T12:34:56.789012Z"}',
            '{"id":2,"d":"0000-00-00","t":"838:59:59","t1":"-838:59:59.0","t3":"-00:00:01.500",'
            '"t6":"-00:00:00.000001","dt":"0000-00-00T00:00:00","dt1":"0000-00-00T00:00:00.0",'
            '"dt3":"0000-00-00T00:00:00.000","dt6":"2024-00-15T00:00:00.000001",'
            '"ts":"0000-00-00T00:00:00Z","ts3":"0000-00-00T00:00:00.000Z",'
            '"ts6":"0000-00-00T00:00:00.000000Z"}',
        ),
    ),
    Table(
        "m_texts",
        "id int primary key, c char(10), v varchar(300), v0 varchar(20) character set latin1, "
        "tt tinytext, t text, mt mediumtext, lt longtext, l1 text character set latin1, "
        "sj varchar(30) character set sjis, uc varchar(30) character set ucs2, "
        "gb varchar(30) character set gbk, u16 varchar(30) character set utf16, "
        "asc7 varchar(10) character set ascii, u3 varchar(30) character set utf8mb3, "
        "bn varchar(10) character set utf8mb4 collate utf8mb4_bin",
        (
            "1,'abc','déjà vu 😀','naïve €','tiny','text','medium','long','Ünï',"
            "'日本語','中文Ω','汉字','😀x','ascii','日本','Bin'",
            "2,'','','','','','','','','','','','','','',''",
            "3,'q\"b\\\\s','line\\nfeed\\ttab\\rret','\\0nul','\\b\\Z','/slash',"
            "'\\'single\\'','\\x7f',X'80FF','ｱ','x','x','x','x','x','x'",
            "4,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL",
            "5,'trail  ','trail  ',REPEAT('é',20),REPEAT('a',255),REPEAT('b',300),"
            "REPEAT('c',70000),REPEAT('d',100),'x','x','x','x','x','x','x','x'",
        ),
        (
            '{"id":1,"c":"abc","v":"déjà vu 😀","v0":"naïve €","tt":"tiny","t":"text",'
            '"mt":"medium","lt":"long","l1":"Ünï","sj":"日本語","uc":"中文Ω","gb":"汉字",'
            '"u16":"😀x","asc7":"ascii","u3":"日本","bn":"Bin"}',
        ),
        options="DEFAULT CHARSET=utf8mb4",
    ),
    Table(
        "m_binaries",
        "id int primary key, b binary(4), vb varbinary(300), tb tinyblob, bl blob, mb mediumblob, "
        "lb longblob",
        (
            "1,X'00FF10','printable',X'DEADBEEF','blob',X'',X'0102030405'",
            "2,X'01020304',X'','','','',''",
            "3,NULL,NULL,NULL,NULL,NULL,NULL",
            "4,'abcd',REPEAT(X'80',299),REPEAT(X'81',254),REPEAT('z',3001),REPEAT('y',70001),X'0A'",
        ),
        (
            '{"id":1,"b":{"_base64":"AP8QAA=="},"vb":{"_base64":"cHJpbnRhYmxl"},'
            '"tb":{"_base64":"3q2+7w=="},"bl":{"_base64":"YmxvYg=="},"mb":{"_base64":""},'
            '"lb":{"_base64":"AQIDBAU="}}',
        ),
    ),
    Table(
        "m_enums",
        "id int primary key, e enum('a','b','it''s','with,comma','quo\"te','ü😀',''), "
        "s set('x','y y','z''z','ü','q\"q'), "
        "el enum('é','ö') character set latin1, big set('a1','a2','a3','a4','a5','a6','a7',"
        "'a8','a9','b1','b2','b3','b4','b5','b6','b7','b8','b9')",
        (
            "1,'a','x','é','a1,b9'",
            "2,'it''s','x,z''z,ü','ö','a8,a9,b1'",
            "3,'with,comma','q\"q','é',''",
            "4,'quo\"te','','ö','a1,a2,a3,a4,a5,a6,a7,a8,a9,b1,b2,b3,b4,b5,b6,b7,b8,b9'",
            "5,'ü😀','y y','é','b9'",
            "6,'','x','é','a1'",
            "7,'no such label','x','é','a1'",
            "8,NULL,NULL,NULL,NULL",
        ),
        (
            '{"id":1,"e":"a","s":"x","el":"é","big":"a1,b9"}',
            '{"id":2,"e":"it\'s","s":"x,z\'z,ü","el":"ö","big":"a8,a9,b1"}',
            '{"id":3,"e":"with,comma","s":"q\\"q","el":"é","big":""}',
        ),
        options="DEFAULT CHARSET=utf8mb4",
    ),
    Table(
        "m_bits",
        "id int primary key, b1 bit(1), b8 bit(8), b9 bit(9), b33 bit(33), b64 bit(64)",
        (
            "1,b'1',b'10000001',b'101010101',b'100000000000000000000000000000001',"
            "X'FFFFFFFFFFFFFFFF'",
            "2,b'0',0,0,0,0",
            "3,NULL,NULL,NULL,NULL,NULL",
        ),
        (
            '{"id":1,"b1":true,"b8":129,"b9":341,"b33":4294967297,"b64":18446744073709551615}',
            '{"id":2,"b1":false,"b8":0,"b9":0,"b33":0,"b64":0}',
            '{"id":3,"b1":null,"b8":null,"b9":null,"b33":null,"b64":null}',
        ),
    ),
    Table(
        "m_json",
        "id int primary key, j json",
        (
            """1,'{"a":1,"b":[1,2.5,"x",null,true,false],"c":{"d":"é😀","e":""}}'""",
            "2,'[]'",
            "3,'{}'",
            "4,'null'",
            '5,\'"str\\\\n\\\\"q\\\\""\'',
            "6,'[9223372036854775807,-9223372036854775808,18446744073709551615]'",
            "7,'[1e100,1.5,-0.0,100000000000000000000]'",
            "8,JSON_ARRAY(CAST(1.2300 AS DECIMAL(20,4)),CAST(-5 AS SIGNED))",
            "9,JSON_ARRAY(TIMESTAMP'2024-02-29 12:34:56.789',DATE'2024-02-29',TIME'12:34:56')",
            "10,'true'",
            "11,NULL",
            "12,JSON_OBJECT('big',REPEAT('x',70000),'n',1)",
            "13,'[1e15,123456789012345680,1e16,0.00001,2.5e-7,100.0,1e-300]'",
            """14,'{"bb":{"q\\\\"\\\\\\\\k":[[],{}]},"a":"\\\\u0001/\\\\t"}'""",
        ),
        (
            '{"id":1,"j":{"a":1,"b":[1,2.5,"x",null,true,false],"c":{"d":"é😀","e":""}}}',
            '{"id":2,"j":[]}',
            '{"id":3,"j":{}}',
            '{"id":4,"j":null}',
            '{"id":5,"j":"str\\n\\"q\\""}',
            '{"id":6,"j":[9223372036854775807,-9223372036854775808,18446744073709551615]}',
            '{"id":7,"j":[1e100,1.5,-0.0,1e20]}',
            '{"id":8,"j":[1.2300,-5]}',
            '{"id":9,"j":["2024-02-29 12:34:56.789000","2024-02-29","12:34:56.000000"]}',
            '{"id":10,"j":true}',
            '{"id":11,"j":null}',
        ),
        options="DEFAULT CHARSET=utf8mb4",
        only="mysql",
    ),
    Table(
        "m_json_text",
        "id int primary key, j json",
        ("""1,'{"a": 1, "b":[1,2.5]}'""", "2,NULL", "3,'[]'"),
        (
            '{"id":1,"j":"{\\"a\\": 1, \\"b\\":[1,2.5]}"}',
            '{"id":2,"j":null}',
            '{"id":3,"j":"[]"}',
        ),
        options="DEFAULT CHARSET=utf8mb4",
        only="mariadb",
    ),
    Table(
        "m_shape",
        "id int primary key, g geometry",
        ("1,ST_GeomFromText('POINT(1 2)')",),
        ('{"id":1,"g":{"srid":0,"_base64":"AQEAAAAAAAAAAADwPwAAAAAAAABA"}}',),
    ),
    Table(
        "m_geometry",
        "id int primary key, g geometry, p point",
        (
            "1,ST_GeomFromText('POINT(1 2)'),ST_GeomFromText('POINT(-1.5 2.25)',4326)",
            "2,ST_GeomFromText('LINESTRING(0 0,1 1,2 2)'),NULL",
        ),
    ),
    Table(
        "m_vector",
        "id int primary key, v vector(3)",
        ("1,STRING_TO_VECTOR('[1,-2,0.5]')", "2,NULL"),
        ('{"id":1,"v":{"_base64":"AACAPwAAAMAAAAA/"}}', '{"id":2,"v":null}'),
        only="mysql",
    ),
    Table(
        "m_mariadb",
        "id int primary key, u uuid, i6 inet6, i4 inet4",
        (
            "1,'123e4567-e89b-12d3-a456-426655440000','2001:db8::ff00:42:8329','192.0.2.1'",
            "2,'00000000-0000-0000-0000-000000000000','::ffff:192.0.2.1','0.0.0.0'",
            "3,NULL,NULL,NULL",
            "4,'0193b5c2-7d1e-7c3a-9f00-000000000100','::','255.255.255.255'",
            "5,'f47ac10b-58cc-4372-a567-0e02b2c30000','::1','10.0.0.0'",
            "6,'1ec9414c-232a-6b00-b3c8-9f6bdeced846','2001:db8:0:1:1:1:1:1','127.0.0.1'",
            "7,'ffffffff-ffff-ffff-ffff-ffffffffffff','fe80::','0.0.0.1'",
            "8,'6ba7b810-9dad-11d1-80b4-00c04fd40000','::192.0.2.1','1.2.0.0'",
            "9,'00000000-0000-4000-0000-000000000001','1:0:0:2:0:0:0:3','8.8.8.8'",
            "10,'123e4567-e89b-52d3-2456-426655440000','::1:2','1.0.0.0'",
            "11,NULL,'1:2:3:4:5:6:7:0',NULL",
            "12,NULL,'0:2:3:4:5:6:7:8',NULL",
            "13,NULL,'1:0:2:0:3:0:4:5',NULL",
            "14,NULL,'0:0:0:0:0:ffff:0:1',NULL",
            "15,NULL,'0:0:0:0:1:ffff:0:1',NULL",
            "16,NULL,'0:1:0:0:0:ffff:abcd:0',NULL",
        ),
        (
            '{"id":1,"u":"123e4567-e89b-12d3-a456-426655440000","i6":"2001:db8::ff00:42:8329",'
            '"i4":"192.0.2.1"}',
            '{"id":2,"u":"00000000-0000-0000-0000-000000000000","i6":"::ffff:192.0.2.1",'
            '"i4":"0.0.0.0"}',
        ),
        only="mariadb",
    ),
    Table(
        "m_uuid_key",
        "u uuid primary key, v int",
        (
            "'00000000-0000-0000-0000-000000000000',1",
            "'6ba7b810-9dad-11d1-80b4-00c04fd43000',2",
            "'f47ac10b-58cc-4372-a567-0e02b2c3d400',3",
        ),
        (
            '{"u":"00000000-0000-0000-0000-000000000000","v":1}',
            '{"u":"6ba7b810-9dad-11d1-80b4-00c04fd43000","v":2}',
        ),
        only="mariadb",
    ),
    Table(
        "m_generated",
        "id int primary key, a int, b int generated always as (a + 1) stored, "
        "c varchar(20) generated always as (concat('v', a)) virtual",
        ("1,5,DEFAULT,DEFAULT", "2,NULL,DEFAULT,DEFAULT"),
        (),
    ),
    Table("m_no_key", "a int, b varchar(10)", ("1,'x'", "1,'x'", "NULL,NULL")),
    Table(
        "m_composite_key",
        "b varchar(20), a int, v int, primary key (a, b)",
        ("'ä\"',-1,30", "'X2',1,20", "'x',2,10"),
        (
            '{"b":"ä\\"","a":-1,"v":30}',
            '{"b":"X2","a":1,"v":20}',
            '{"b":"x","a":2,"v":10}',
        ),
        options="DEFAULT CHARSET=utf8mb4",
    ),
    Table(
        "m_binary_key",
        "k binary(4) primary key, v int",
        ("X'00000001',1", "X'FF00FF00',2"),
        (
            '{"k":{"_base64":"AAAAAQ=="},"v":1}',
            '{"k":{"_base64":"/wD/AA=="},"v":2}',
        ),
    ),
    Table(
        "m_odd_names",
        '`id` int primary key, `sp ace` int, `quo"te` int, `ü` int, `back``tick` int, `a\\b` int',
        ("1,2,3,4,5,6",),
        ('{"id":1,"sp ace":2,"quo\\"te":3,"ü":4,"back`tick":5,"a\\\\b":6}',),
    ),
    Table(
        "m_wide",
        "id int primary key, " + ", ".join(f"c{i} int" for i in range(150)),
        (
            "1," + ",".join("NULL" if i % 3 == 0 else str(i) for i in range(150)),
            "2," + ",".join("NULL" for i in range(150)),
        ),
    ),
)


def tables_for(flavor: str) -> list[Table]:
    """Return the tables that a server can create; ``flavor`` is ``mysql`` or ``mariadb``."""
    return [table for table in TABLES if table.only in ("", flavor)]
